"""Files of the docker runtime: the state that must outlive a container or the agent.

One directory for each run:

    run.json             the handle and the order; `launched` once all containers are created and may be started
    stop.json            the stop: its reason, and the time of SIGKILL
    secrets/             the secrets that containers get as files (`secret_files`)
    TASK/log.jsonl       the lines; TASK/done.json: the log is complete
    TASK/killed.json     why we killed it
    TASK/exit.json       the last report, which never changes
    TASK/attachment-ID   an attachment, whose processes may have outlived its agent

They are cached in memory: no other process writes them.
"""

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from trainyard_agent.host.files import DamagedFile, read_json, remove_tree, write_json
from trainyard_agent.runtimes.base import Handle, LogSlice
from trainyard_agent.runtimes.log_file import DONE, RunLogs
from trainyard_agent.runtimes.run_directories import REMOVED, is_run_id
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder

_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A run's id and a task."""

AttachmentKey = tuple[str, str, str]
"""The same, and the id of an attachment."""

_ATTACHMENT = "attachment-"


class ContainerRunRecord(Handle):
    """run.json. `memory` are the limits in bytes by task; `host` is the boot and the engine's process of the last
    observation of the run alive; `job_dir` is the host's directory that is mounted, "": none; `users` by task are those
    that are not the image's own."""

    runtime: RuntimeName = "docker"
    order: RunOrder
    memory: dict[str, int] = Field(default_factory=dict)
    host: str = ""
    job_dir: str = ""
    users: dict[str, str] = Field(default_factory=dict)


class StopRecord(BaseModel):
    """stop.json. `tasks` were alive at the stop; `kill_at` is monotonic, in seconds."""

    reason: Reason
    tasks: tuple[str, ...]
    kill_at: float


class KillRecord(BaseModel):
    """killed.json. Not a stop: the replica exceeded a limit, and its run fails."""

    reason: Reason
    message: str


class RunFiles:
    """The records, stops, exits and logs of all runs below `root`."""

    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._records: dict[str, ContainerRunRecord] = {}
        self._stops: dict[str, StopRecord] = {}
        self._reports: dict[Key, ReplicaReport] = {}
        self._logs = RunLogs(root)
        for path in sorted(root.iterdir()):
            self._load(path.name)

    def records(self) -> list[ContainerRunRecord]:
        return list(self._records.values())

    def record(self, run_id: str) -> ContainerRunRecord | None:
        """The run's record; None for an unknown run, and for one of whose directories any was removed by hand."""
        record = self._records.get(run_id)
        if record is not None and not all(self.directory(run_id, task).is_dir() for task in record.addresses):
            self._forget(run_id)
            return None
        return record

    def create(self, record: ContainerRunRecord) -> None:
        """Create the run's directory and record. Raises OSError and ValueError, and leaves no files."""
        if not is_run_id(record.run_id):
            raise ValueError(f"{record.run_id!r} is not a run id")
        try:
            for task in record.addresses:
                self.directory(record.run_id, task).mkdir(mode=0o700, parents=True)
            self.save(record)
        except OSError:
            self.discard(record.run_id)
            raise

    def save(self, record: ContainerRunRecord) -> None:
        write_json(self._root / record.run_id / "run.json", record.model_dump(mode="json"))
        self._records[record.run_id] = record

    def directory(self, run_id: str, task: str) -> Path:
        return self._root / run_id / task

    def secrets(self, run_id: str) -> Path:
        """The directory of the run's secrets."""
        return self._root / run_id / "secrets"

    def stop(self, run_id: str) -> StopRecord | None:
        return self._stops.get(run_id)

    def save_stop(self, run_id: str, tasks: list[str], grace_s: float, reason: Reason) -> None:
        """Save a stop. Again: the first reason and tasks stay, the earlier SIGKILL applies. On a full disk the stop is
        held in memory only."""
        kill_at = time.monotonic() + grace_s
        before = self._stops.get(run_id)
        if before is None:
            stop = StopRecord(reason=reason, tasks=tuple(tasks), kill_at=kill_at)
        else:
            stop = before.model_copy(update={"kill_at": min(before.kill_at, kill_at)})
        self._stops[run_id] = stop
        try:
            write_json(self._root / run_id / "stop.json", stop.model_dump(mode="json"))
        except OSError as error:
            _log.warning("stop.json of run %s cannot be written; it is stopped without: %s", run_id, error)

    def kill(self, run_id: str, task: str) -> KillRecord | None:
        value = read_json(self.directory(run_id, task) / "killed.json")
        return None if value is None else KillRecord.model_validate(value)

    def save_kill(self, run_id: str, task: str, reason: Reason, message: str) -> None:
        """Save why a replica is about to be killed. Raises OSError."""
        record = KillRecord(reason=reason, message=message)
        write_json(self.directory(run_id, task) / "killed.json", record.model_dump(mode="json"))

    def report(self, run_id: str, task: str) -> ReplicaReport | None:
        """The saved exit of a replica."""
        return self._reports.get((run_id, task))

    def save_exit(self, run_id: str, report: ReplicaReport) -> None:
        """Save a replica's exit. Raises OSError, and then the exit is not reported."""
        write_json(self.directory(run_id, report.task) / "exit.json", report.model_dump(mode="json"))
        self._reports[(run_id, report.task)] = report

    def close_log(self, run_id: str, task: str, note: Mapping[str, str]) -> None:
        write_json(self.directory(run_id, task) / DONE, note)

    def log_is_closed(self, run_id: str, task: str) -> bool:
        return (self.directory(run_id, task) / DONE).exists()

    def note_attachment(self, key: AttachmentKey) -> None:
        """Raises OSError."""
        self._attachment(key).touch(mode=0o600)

    def forget_attachment(self, key: AttachmentKey) -> None:
        self._attachment(key).unlink(missing_ok=True)

    def attachments(self) -> list[AttachmentKey]:
        """Those that were noted and not forgotten, of all runs."""
        return [
            (record.run_id, task, path.name.removeprefix(_ATTACHMENT))
            for record in self._records.values()
            for task in record.addresses
            for path in self.directory(record.run_id, task).glob(f"{_ATTACHMENT}*")
        ]

    def _attachment(self, key: AttachmentKey) -> Path:
        run_id, task, attachment = key
        return self.directory(run_id, task) / f"{_ATTACHMENT}{attachment}"

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        """Read lines: see `Runtime.read_log`."""
        return self._logs.read(run_id, task, start, max_lines, max_bytes)

    def discard(self, run_id: str) -> None:
        """Remove the run's files and record, if there are any."""
        self._forget(run_id)
        path, removed = self._root / run_id, self._root / f"{REMOVED}{run_id}"
        try:
            if path.exists():
                path.rename(removed)  # atomic for readers of a log
            remove_tree(removed)
        except OSError as error:  # the next agent tries again
            _log.warning("%s cannot be removed: %s", path, error)

    def sweep(self) -> None:
        """Remove directories of no run: a removal was interrupted, or run.json is damaged."""
        for path in self._root.iterdir():
            if path.name not in self._records:
                try:
                    remove_tree(path)
                except OSError as error:
                    _log.warning("%s cannot be removed: %s", path, error)

    def _forget(self, run_id: str) -> None:
        self._records.pop(run_id, None)
        self._stops.pop(run_id, None)
        for key in [key for key in self._reports if key[0] == run_id]:
            del self._reports[key]
        self._logs.forget(run_id)

    def _load(self, run_id: str) -> None:
        directory = self._root / run_id
        try:
            value = read_json(directory / "run.json")
            if value is None or not is_run_id(run_id):
                return
            record = ContainerRunRecord.model_validate(value)
            stop = read_json(directory / "stop.json")
            exits = {task: read_json(directory / task / "exit.json") for task in record.addresses}
            reports = {(run_id, task): ReplicaReport.model_validate(report) for task, report in exits.items() if report}
            if stop is not None:
                self._stops[run_id] = StopRecord.model_validate(stop)
        except (DamagedFile, ValidationError) as error:
            _log.error("run %s is dropped, its files are damaged: %s", run_id, error)
            return
        self._records[run_id] = record
        self._reports |= reports
