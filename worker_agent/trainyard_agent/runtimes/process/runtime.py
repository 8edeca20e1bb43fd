"""The process runtime: each replica is a process of this machine, under a supervisor (`shim.py`) of its own.

All that it knows lies in `runs/RUN/` of the agent's state directory: run.json is the handle, written whole
with `launched` at the one moment when a run comes into being; what the supervisors write stands there. A
supervisor lives as long as its `alive` file is locked, so nothing here depends on process ids that the
kernel may use again.
"""

import contextlib
import fcntl
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import TypeVar

from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from trainyard_agent.host import process_tags as marks
from trainyard_agent.host import procfs as process_table
from trainyard_agent.host.files import (
    DamagedFile,
    is_locked,
    read_json,
    remove_tree,
    try_lock,
    write_json,
)
from trainyard_agent.runtimes.base import STOPPED, Handle, Launch, LogSlice, StartFailed
from trainyard_agent.runtimes.exits import StopOrder, code_of_status, exit_report
from trainyard_agent.runtimes.log_file import LogFile
from trainyard_agent.runtimes.process import ports
from trainyard_agent.runtimes.process import supervisor as shim
from trainyard_agent.runtimes.use import Use
from trainyard_protocol.cluster import Task
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.sync import ReplicaReport, RunOrder, RuntimeName

PASSED_ON = (
    *("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("LD_LIBRARY_PATH", "CUDA_HOME"),  # how frameworks find the machine's devices
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"),  # gs:// at Google, as the user who runs us
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
"""What a replica inherits of the agent's environment; nothing else, so no token of ours either."""

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REMOVED = ".removed-"
_LOCK_FD = 3
_PATIENCE_S = 10.0  # for a supervisor that was told to kill everything at once
_BURIAL_S = 1.0  # for what outlived a supervisor to die, at one look: there is a next one
_PAUSE_S = 0.005
_log = logging.getLogger(__name__)


class _Record(Handle):
    """run.json: the handle, and the process ids of the supervisors by task."""

    pids: dict[str, int] = Field(default_factory=dict)


class _Stop(BaseModel):
    """stop.json: when (on the monotonic clock) and why a run was told to stop, and when it is killed."""

    monotonic: float
    reason: Reason
    kill_at: float


class _Started(BaseModel):
    """started.json: when the program started, and its pid."""

    time: AwareDatetime
    pid: int = 0


class _Ended(BaseModel):
    """exit.json: how and when the program ended. Neither status nor failure: nobody knows how."""

    time: AwareDatetime
    monotonic: float
    status: int | None = None
    failure: str = ""


_Kind = TypeVar("_Kind", bound=BaseModel)


class ProcessRuntime:
    name: RuntimeName = "process"
    runs_images = False

    def __init__(self, state_dir: Path) -> None:
        self._runs = state_dir / "runs"
        self._runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._children: set[int] = set()
        self._logs: dict[tuple[str, str], LogFile] = {}
        self._final: dict[tuple[str, str], ReplicaReport] = {}
        self._stops: dict[str, _Stop] = {}
        """Those that a full disk refused, as a second best: they are lost with this agent."""
        self._said: set[str] = set()

    @staticmethod
    def has_runs(state_dir: Path) -> bool:
        """Whether there may be replicas of an agent with this state directory."""
        runs = state_dir / "runs"
        return runs.is_dir() and any(not path.name.startswith(_REMOVED) for path in runs.iterdir())

    def recover(self) -> list[Handle]:
        with self._lock:
            for path in sorted(self._runs.iterdir()):
                try:
                    if path.name.startswith(_REMOVED):
                        remove_tree(path)
                    elif not self._launched(path.name):
                        self.remove(path.name)
                except (OSError, marks.StillAlive) as error:  # the others are no worse for it
                    self._say(f"{path} cannot be cleared away; the next agent tries again: {error}")
            return [record for record in self._records() if record.launched]

    def place(self, order: RunOrder) -> Handle:
        run_id, replicas = order.run_id, order.replicas
        with self._lock:
            record = self._record(run_id)
            if record is not None:
                return record
            first = replicas[0].task
            if not _RUN_ID.fullmatch(run_id):
                raise StartFailed(first, f"{run_id!r} is no run id.")
            taken = {_port(address) for other in self._records() for address in other.addresses.values()}
            try:
                free = ports.free_ports(len(replicas), taken)
                for replica in replicas:
                    directory = self._runs / run_id / Task.parse(replica.task).name
                    for name in ("work", "tmp"):
                        (directory / name).mkdir(mode=0o700, parents=True)
                (self._runs / run_id / "gate").touch(mode=0o600)
                addresses = {r.task: f"127.0.0.1:{port}" for r, port in zip(replicas, free, strict=True)}
                record = _Record(run_id=run_id, addresses=addresses, grace_s=order.grace_s)
                self._write(record)
            except (OSError, ports.NoFreePort, ValueError) as error:
                self.remove(run_id)
                raise StartFailed(first, f"There is no room for it: {error}.", Reason.HOST_FAILED) from error
            return record

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        with self._lock:
            record = self._record(run_id)
            if record is None:
                raise StartFailed(launches[0].task, "Its run was not placed.")
            if record.launched:
                return record
            try:
                return self._launch(record, launches)
            except (StartFailed, OSError) as error:
                self.remove(run_id)
                if isinstance(error, StartFailed):
                    raise
                raise StartFailed(launches[0].task, f"{error}.", Reason.HOST_FAILED) from error

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        with self._lock:
            self._reap()
            record = self._record(run_id)
            if record is None:
                return ()
            return tuple(self._observe(record, task) for task in record.addresses)

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        directory = self._runs / run_id / task
        if not directory.is_dir():
            return LogSlice((), complete=True)
        log = self._logs.setdefault((run_id, task), LogFile(directory / "log.jsonl"))
        return log.slice(start, max_lines, max_bytes, directory / "done.json")

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:
        directory = self._runs / run_id / task
        started = self._read(directory / "started.json", _Started)
        # The supervisor buries the program only after it has written exit.json, so until then the id is the program's.
        if started is None or not self._alive(run_id, task) or (directory / "exit.json").exists():
            return ()
        below = process_table.tree(started.pid)
        return (*below, *sorted(set(marks.marked(run_id, task)) - set(below)))

    def usage(self, run_id: str, task: str) -> Use | None:
        record = self._record(run_id)
        directory = self._runs / run_id / task
        if record is None or not self._alive(run_id, task) or (directory / "exit.json").exists():
            return None
        supervisor = record.pids.get(task)
        if supervisor is None or not (directory / "started.json").exists():
            return None
        # All of it descends from the supervisor, which buries what was orphaned: nothing that was used is lost.
        below = process_table.tree(supervisor)[1:]
        cpu_s = process_table.cpu_s(supervisor, own=False) + sum(map(process_table.cpu_s, below))
        return Use(cpu_s, sum(map(process_table.resident_bytes, below))) if below else None

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        with self._lock:
            record = self._record(run_id)
            alive = [task for task in record.pids if self._alive(run_id, task)] if record else []
            if record is None or not alive:
                return
            now = time.monotonic()
            before = self._stop(run_id) or _Stop(monotonic=now, reason=reason, kill_at=now + grace_s)
            order = before.model_copy(update={"kill_at": min(before.kill_at, now + grace_s)})
            try:
                # Written before the signal goes out: what ends from now on ended after the stop.
                write_json(self._runs / run_id / "stop.json", order.model_dump(mode="json"))
                self._stops.pop(run_id, None)
            except OSError as error:  # the signal alone stops it too, with the supervisor's own grace
                self._stops[run_id] = order
                self._say(f"run {run_id} is stopped without a stop.json: {error}")
            for task in alive:
                with contextlib.suppress(ProcessLookupError):  # its lock was free in between
                    os.kill(record.pids[task], signal.SIGTERM)

    def remove(self, run_id: str) -> None:
        with self._lock:
            path = self._runs / run_id
            if not _RUN_ID.fullmatch(run_id) or not path.exists():
                return
            self._extinguish(run_id)
            # Another name each time: what could not be removed earlier may still be there.
            gone = self._runs / f"{_REMOVED}{run_id}.{time.time_ns()}"
            path.rename(gone)  # at once for whoever reads a log in this moment
            try:
                remove_tree(gone)
            except OSError as error:
                self._say(f"{gone} cannot be removed; the next agent tries again: {error}")
            self._stops.pop(run_id, None)
            self._logs = {key: log for key, log in self._logs.items() if key[0] != run_id}
            self._final = {key: report for key, report in self._final.items() if key[0] != run_id}
            self._reap()

    def is_over(self, run_id: str) -> bool:
        """Whether nothing of the run lives any more and its logs are whole. Unknown run: True."""
        self.observe(run_id)  # closes the books of a supervisor that was killed
        record = self._record(run_id)
        tasks = list(record.addresses) if record and record.launched else []
        return all(
            (self._runs / run_id / task / "done.json").exists() and not self._alive(run_id, task)
            for task in tasks
        )

    def _launch(self, record: _Record, launches: Sequence[Launch]) -> Handle:
        """Every supervisor waits at the gate until run.json says `launched`: if the agent dies before that,
        the gate opens, they find that it does not, and leave."""
        run = self._runs / record.run_id
        with (run / "gate").open("r+b") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            pids: dict[str, int] = {}
            for launch in launches:
                write_json(run / launch.task / "launch.json", _spec(record.run_id, launch, run / launch.task))
            for launch in launches:
                try:
                    pids[launch.task] = self._spawn(run / launch.task)
                except OSError as error:
                    for pid in pids.values():  # our children, not waited for: the ids are still theirs
                        os.kill(pid, signal.SIGKILL)
                    trouble = f"Its supervisor could not be started: {error.strerror}."
                    raise StartFailed(launch.task, trouble, Reason.HOST_FAILED) from error
            launched = record.model_copy(update={"pids": pids, "launched": True})
            self._write(launched)
        return launched

    def _spawn(self, directory: Path) -> int:
        lock = try_lock(directory / "alive")
        if lock is None:
            raise OSError(0, "another supervisor holds its directory")
        command = [sys.executable, "-I", "-S", shim.__file__, str(directory), str(_LOCK_FD)]
        errors = os.open(directory / "shim.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            pid = os.posix_spawn(
                sys.executable,
                command,
                {"LANG": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, nothing, 0),
                    (os.POSIX_SPAWN_DUP2, nothing, 1),
                    (os.POSIX_SPAWN_DUP2, errors, 2),
                    (os.POSIX_SPAWN_DUP2, lock, _LOCK_FD),
                ],
                setsid=True,
                setsigmask=[signal.SIGTERM],  # until it listens: see shim.main
                setsigdef=[signal.SIGPIPE],
            )
        finally:
            for fd in (lock, errors, nothing):
                os.close(fd)
        self._children.add(pid)
        return pid

    def _observe(self, record: _Record, task: str) -> ReplicaReport:
        key = (record.run_id, task)
        if key in self._final:
            return self._final[key]
        address = record.addresses[task]
        if not record.launched:
            return ReplicaReport(task=task, state=ReplicaState.PENDING, address=address)
        directory = self._runs / record.run_id / task
        alive = self._alive(record.run_id, task)  # asked first: a supervisor writes before it leaves
        ended = self._read(directory / "exit.json", _Ended)
        closed = (directory / "done.json").exists()
        if not alive and not (ended and closed):
            try:
                ended, closed = self._bury(record.run_id, task, ended), True
            except (OSError, marks.StillAlive) as error:  # as if it lived, until a later look succeeds
                self._say(f"the end of {task} of run {record.run_id} cannot be written down yet: {error}")
        started = self._read(directory / "started.json", _Started)
        report = ReplicaReport(
            task=task,
            state=ReplicaState.RUNNING if started else ReplicaState.STARTING,
            address=address,
            started_at=started.time.astimezone(UTC) if started else None,
        )
        if ended is None:
            return report
        stop = self._stop(record.run_id)
        how = exit_report(
            code=None if ended.status is None else code_of_status(ended.status),
            finished_at=ended.time.astimezone(UTC),
            ended=ended.monotonic,
            stop=StopOrder(stop.monotonic, stop.reason) if stop else None,
            failure=ended.failure,
        )
        report = report.model_copy(update={"state": ReplicaState.EXITED, "exit": how})
        if closed:  # before that the supervisor may still be killed, and its books must be closed
            self._final[key] = report
        return report

    def _bury(self, run_id: str, task: str, ended: _Ended | None) -> _Ended:
        """The supervisor was killed. Its program died with it; end what outlived both, close the log.

        Raises OSError or StillAlive where that cannot be done now.
        """
        marks.kill_marked(run_id, task, _BURIAL_S)
        directory = self._runs / run_id / task
        (directory / shim.RESERVE).unlink(missing_ok=True)  # for what is written here
        if ended is None:
            vanished = {"time": shim.rfc3339(time.time_ns()), "monotonic": time.monotonic()}
            ended = _Ended.model_validate(vanished)
            write_json(directory / "exit.json", vanished)
        write_json(directory / "done.json", {"supervisor": "killed"})
        return ended

    def _stop(self, run_id: str) -> _Stop | None:
        return self._read(self._runs / run_id / "stop.json", _Stop) or self._stops.get(run_id)

    def _extinguish(self, run_id: str) -> None:
        """Nothing of the run lives after this."""
        record = self._record(run_id)
        tasks = list(record.addresses) if record else [path.name for path in (self._runs / run_id).glob("*/")]
        self.stop(run_id, 0.0)
        if record is None:  # it is damaged: a supervisor leaves when its program is gone
            marks.kill_marked(run_id)
        patient_until = time.monotonic() + _PATIENCE_S
        while tasks := [task for task in tasks if self._alive(run_id, task)]:
            late = time.monotonic() - patient_until
            if late > _PATIENCE_S:
                raise marks.StillAlive(f"the supervisors of {', '.join(tasks)} of run {run_id} do not end")
            if record and late > 0:
                for task in tasks:
                    with contextlib.suppress(ProcessLookupError, KeyError):
                        os.kill(record.pids[task], signal.SIGKILL)
            self._reap()
            time.sleep(_PAUSE_S)
        marks.kill_marked(run_id)

    def _alive(self, run_id: str, task: str) -> bool:
        return is_locked(self._runs / run_id / task / "alive")

    def _reap(self) -> None:
        """Bury the supervisors that are children of this very process; init does it for the others."""
        for pid in list(self._children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._children.discard(pid)

    def _records(self) -> list[_Record]:
        found: list[_Record] = []
        for path in sorted(self._runs.iterdir()):
            try:
                record = self._record(path.name)
            except OSError as error:
                self._say(f"{path} cannot be read: {error}")
            else:
                found += [record] if record else []
        return found

    def _record(self, run_id: str) -> _Record | None:
        if not _RUN_ID.fullmatch(run_id):
            return None
        return self._read(self._runs / run_id / "run.json", _Record)

    def _launched(self, run_id: str) -> bool:
        record = self._record(run_id)
        return record is not None and record.launched

    def _write(self, record: _Record) -> None:
        write_json(self._runs / record.run_id / "run.json", record.model_dump(mode="json"))

    def _read(self, path: Path, kind: type[_Kind]) -> _Kind | None:
        """What a file says; None where there is none, or a damaged one."""
        try:
            value = read_json(path)
            return None if value is None else kind.model_validate(value)
        except (DamagedFile, ValidationError) as error:
            self._say(f"{path} counts as absent: {error}")
            return None

    def _say(self, trouble: str) -> None:
        """The same trouble only once."""
        if trouble not in self._said:
            _log.warning("%s", trouble)
        self._said.add(trouble)


def replica_environment(
    run_id: str, launch: Launch, directory: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of one replica. `inherited` is the agent's, of which little is passed on."""
    path = inherited.get("PATH", os.defpath)
    return {
        **{name: inherited[name] for name in PASSED_ON if name in inherited},
        "PATH": f"{Path(launch.command[0]).parent}{os.pathsep}{path}",
        "PYTHONUNBUFFERED": "1",  # so that a line is in the log when it is printed
        "TMPDIR": str(directory / "tmp"),
        **launch.environment,
        "CUDA_VISIBLE_DEVICES": ",".join(launch.gpus),
        **marks.mark(run_id, launch.task),
    }


def _spec(run_id: str, launch: Launch, directory: Path) -> dict[str, object]:
    """launch.json. Raises StartFailed for a command that nothing on this machine can execute."""
    environment = replica_environment(run_id, launch, directory, os.environ)
    program = shutil.which(launch.command[0], path=environment["PATH"])
    if program is None:
        raise StartFailed(launch.task, f"There is no program {launch.command[0]!r} on this machine.")
    return {
        "command": [program, *launch.command[1:]],
        "environment": environment,
        "directory": str(directory / "work"),
        "cpus": list(launch.cpus),
        "log_quota": launch.log_quota_bytes,
    }


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])
