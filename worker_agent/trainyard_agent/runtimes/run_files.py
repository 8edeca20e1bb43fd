"""What the docker runtime keeps on disk: everything that must outlive a container or the agent.

One directory a run:

    run.json             the handle and the order; `launched` once all containers are there and are to be started
    stop.json            that it was told to stop, why, and when SIGKILL is due
    TASK/log.jsonl       its lines; TASK/done.json: there can be no more
    TASK/exit.json       its last report, which never changes

What is read often is kept in memory too: nobody else writes here.
"""

import logging
import re
import time
from pathlib import Path

from pydantic import BaseModel, Field, ValidationError

from trainyard_agent.host.files import DamagedFile, read_json, remove_tree, write_json
from trainyard_agent.runtimes.base import Handle, LogSlice
from trainyard_agent.runtimes.log_file import LogFile
from trainyard_protocol.states import Reason
from trainyard_protocol.sync import ReplicaReport, RunOrder

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REMOVED = ".removed-"

_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A run's id and a task."""


class Record(Handle):
    """run.json. `memory` are the limits in bytes by task; `host` is the boot and the engine's process under
    which the run was last seen alive."""

    order: RunOrder
    memory: dict[str, int] = Field(default_factory=dict)
    host: str = ""


class StopRecord(BaseModel):
    """stop.json. `tasks` were alive when they were told; `kill_at` is monotonic, in seconds."""

    reason: Reason
    tasks: tuple[str, ...]
    kill_at: float


class RunFiles:
    def __init__(self, root: Path) -> None:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._root = root
        self._records: dict[str, Record] = {}
        self._stops: dict[str, StopRecord] = {}
        self._reports: dict[Key, ReplicaReport] = {}
        self._logs: dict[Key, LogFile] = {}
        for path in sorted(root.iterdir()):
            self._load(path.name)

    def records(self) -> list[Record]:
        return list(self._records.values())

    def record(self, run_id: str) -> Record | None:
        """None for an unknown run, and for one whose directory somebody has removed."""
        if run_id in self._records and not (self._root / run_id).is_dir():
            self._forget(run_id)
        return self._records.get(run_id)

    def create(self, record: Record) -> None:
        """Raises OSError and ValueError; then nothing is left of it."""
        if not _RUN_ID.fullmatch(record.run_id):
            raise ValueError(f"{record.run_id!r} is no run id")
        try:
            for task in record.addresses:
                self.directory(record.run_id, task).mkdir(mode=0o700, parents=True)
            self.save(record)
        except OSError:
            self.discard(record.run_id)
            raise

    def save(self, record: Record) -> None:
        write_json(self._root / record.run_id / "run.json", record.model_dump(mode="json"))
        self._records[record.run_id] = record

    def directory(self, run_id: str, task: str) -> Path:
        return self._root / run_id / task

    def stop(self, run_id: str) -> StopRecord | None:
        return self._stops.get(run_id)

    def tell_stop(self, run_id: str, tasks: list[str], grace_s: float, reason: Reason) -> None:
        """The first reason stays, and so do the tasks; the earlier SIGKILL counts. On a full disk it is
        remembered by this agent alone."""
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
            _log.warning("run %s is stopped, and that cannot be written down: %s", run_id, error)

    def report(self, run_id: str, task: str) -> ReplicaReport | None:
        """What was told of a replica's exit."""
        return self._reports.get((run_id, task))

    def tell_exit(self, run_id: str, report: ReplicaReport) -> None:
        """Raises OSError: then it is not told yet."""
        write_json(self.directory(run_id, report.task) / "exit.json", report.model_dump(mode="json"))
        self._reports[(run_id, report.task)] = report

    def close_log(self, run_id: str, task: str) -> None:
        write_json(self.directory(run_id, task) / "done.json", {})

    def log_is_closed(self, run_id: str, task: str) -> bool:
        return (self.directory(run_id, task) / "done.json").exists()

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        """As `Runtime.read_log`."""
        directory = self.directory(run_id, task)
        if not directory.is_dir():
            return LogSlice((), complete=True)
        log = self._logs.setdefault((run_id, task), LogFile(directory / "log.jsonl"))
        return log.slice(start, max_lines, max_bytes, directory / "done.json")

    def discard(self, run_id: str) -> None:
        """Forget the run and remove its files. Unknown: nothing."""
        self._forget(run_id)
        path, gone = self._root / run_id, self._root / f"{_REMOVED}{run_id}"
        try:
            if path.exists():
                path.rename(gone)  # at once for whoever reads a log in this moment
            remove_tree(gone)
        except OSError as error:  # the next agent tries again
            _log.warning("%s cannot be removed: %s", path, error)

    def sweep(self) -> None:
        """Remove what belongs to no run: a removal was cut short, or run.json is damaged."""
        for path in self._root.iterdir():
            if path.name not in self._records:
                try:
                    remove_tree(path)
                except OSError as error:
                    _log.warning("%s cannot be removed: %s", path, error)

    def _forget(self, run_id: str) -> None:
        self._records.pop(run_id, None)
        self._stops.pop(run_id, None)
        for known in (self._reports, self._logs):
            for key in [key for key in known if key[0] == run_id]:
                del known[key]

    def _load(self, run_id: str) -> None:
        directory = self._root / run_id
        try:
            value = read_json(directory / "run.json")
            if value is None or not _RUN_ID.fullmatch(run_id):
                return
            record = Record.model_validate(value)
            stop = read_json(directory / "stop.json")
            told = {task: read_json(directory / task / "exit.json") for task in record.addresses}
            reports = {
                (run_id, task): ReplicaReport.model_validate(report)
                for task, report in told.items()
                if report
            }
            if stop is not None:
                self._stops[run_id] = StopRecord.model_validate(stop)
        except (DamagedFile, ValidationError) as error:
            _log.error("run %s is not known any more: %s", run_id, error)
            return
        self._records[run_id] = record
        self._reports |= reports
