"""The process runtime: each replica is a process of this machine, under its own supervisor (`supervisor.py`).

All state is in `runs/RUN/` of the agent's state directory: run.json is the handle, and is replaced atomically with
`launched` set when the run starts; the supervisors write the rest. A supervisor lives as long as its `alive` file is
locked, so nothing depends on process ids, which the kernel may reuse.
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

from trainyard_agent.host import process_tags, procfs
from trainyard_agent.host.files import (
    DamagedFile,
    is_locked,
    read_json,
    remove_tree,
    try_lock,
    write_json,
)
from trainyard_agent.runtimes import supervisor as supervisor_program
from trainyard_agent.runtimes.base import STOPPED, Handle, Launch, LogSlice, StartFailed
from trainyard_agent.runtimes.exits import StopOrder, code_of_status, exit_report
from trainyard_agent.runtimes.log_file import LogFile
from trainyard_agent.runtimes.process import ports
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.cluster import Task
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.sync import ReplicaReport, RunOrder, RuntimeName

PASSED_ON = (
    *("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("LD_LIBRARY_PATH", "CUDA_HOME"),  # how frameworks find the machine's devices
    *("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"),  # gs:// at Google, as the agent's user
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
"""The variables that a replica inherits from the agent; no others, so no token of ours."""

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REMOVED = ".removed-"
_LOCK_FD = 3
_KILL_TIMEOUT_S = 10.0  # for a supervisor to kill everything
_KILL_ORPHANS_S = 1.0  # for orphans of a killed supervisor to die, in one observation
_PAUSE_S = 0.005
_log = logging.getLogger(__name__)


class _Record(Handle):
    """run.json: the handle, and the process ids of the supervisors by task."""

    runtime: RuntimeName = "process"
    pids: dict[str, int] = Field(default_factory=dict)


class _Stop(BaseModel):
    """stop.json: when (monotonic) and why a run was stopped, and when it is killed."""

    monotonic: float
    reason: Reason
    kill_at: float


class _Started(BaseModel):
    """started.json: when the program started, and its pid."""

    time: AwareDatetime
    pid: int = 0


class _Ended(BaseModel):
    """exit.json: how and when the program ended. Neither status nor failure: unknown."""

    time: AwareDatetime
    monotonic: float
    status: int | None = None
    failure: str = ""


_Kind = TypeVar("_Kind", bound=BaseModel)


class ProcessRuntime:
    def __init__(self, state_dir: Path) -> None:
        self._runs = state_dir / "runs"
        self._runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._children: set[int] = set()
        self._logs: dict[tuple[str, str], LogFile] = {}
        self._final: dict[tuple[str, str], ReplicaReport] = {}
        self._stops: dict[str, _Stop] = {}
        """Stops that a full disk refused. They are lost with this agent."""
        self._warned: set[str] = set()

    @staticmethod
    def has_runs(state_dir: Path) -> bool:
        """Whether this state directory may have replicas of the process runtime."""
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
                except (OSError, process_tags.StillAlive) as error:  # the other runs are not affected
                    self._warn_once(f"{path} cannot be removed; the next agent tries again: {error}")
            return [record for record in self._records() if record.launched]

    def place(self, order: RunOrder) -> Handle:
        run_id, replicas = order.run_id, order.replicas
        with self._lock:
            record = self._record(run_id)
            if record is not None:
                return record
            first = replicas[0].task
            if not _RUN_ID.fullmatch(run_id):
                raise StartFailed(first, f"{run_id!r} is not a run id.")
            used = {_port(address) for other in self._records() for address in other.addresses.values()}
            try:
                free = ports.free_ports(len(replicas), used)
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
        # The supervisor reaps the program only after it has written exit.json, so until then the pid is valid.
        if started is None or not self._alive(run_id, task) or (directory / "exit.json").exists():
            return ()
        tree = procfs.tree(started.pid)
        return (*tree, *sorted(set(process_tags.tagged(run_id, task)) - set(tree)))

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        record = self._record(run_id)
        directory = self._runs / run_id / task
        if record is None or not self._alive(run_id, task) or (directory / "exit.json").exists():
            return None
        supervisor = record.pids.get(task)
        if supervisor is None or not (directory / "started.json").exists():
            return None
        # All processes descend from the supervisor, which reaps orphans: no CPU time is lost.
        tree = procfs.tree(supervisor)[1:]
        cpu_s = procfs.cpu_s(supervisor, own=False) + sum(map(procfs.cpu_s, tree))
        return ReplicaUse(cpu_s, sum(map(procfs.resident_bytes, tree))) if tree else None

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
                # Written before the signal is sent: every exit after it counts as stopped.
                write_json(self._runs / run_id / "stop.json", order.model_dump(mode="json"))
                self._stops.pop(run_id, None)
            except OSError as error:  # the signal alone stops it too, with the supervisor's default grace
                self._stops[run_id] = order
                self._warn_once(
                    f"stop.json of run {run_id} cannot be written; it is stopped without: {error}"
                )
            for task in alive:
                with contextlib.suppress(ProcessLookupError):  # it ended in between
                    os.kill(record.pids[task], signal.SIGTERM)

    def remove(self, run_id: str) -> None:
        with self._lock:
            path = self._runs / run_id
            if not _RUN_ID.fullmatch(run_id) or not path.exists():
                return
            self._kill_all(run_id)
            # A new name each time: an earlier removal may have failed.
            removed = self._runs / f"{_REMOVED}{run_id}.{time.time_ns()}"
            path.rename(removed)  # atomic for readers of a log
            try:
                remove_tree(removed)
            except OSError as error:
                self._warn_once(f"{removed} cannot be removed; the next agent tries again: {error}")
            self._stops.pop(run_id, None)
            self._logs = {key: log for key, log in self._logs.items() if key[0] != run_id}
            self._final = {key: report for key, report in self._final.items() if key[0] != run_id}
            self._reap()

    def has_ended(self, run_id: str) -> bool:
        """Whether every process of the run is dead and its logs are complete. Unknown run: True."""
        self.observe(run_id)  # records the exits of supervisors that were killed
        record = self._record(run_id)
        tasks = list(record.addresses) if record and record.launched else []
        return all(
            (self._runs / run_id / task / "done.json").exists() and not self._alive(run_id, task)
            for task in tasks
        )

    def _launch(self, record: _Record, launches: Sequence[Launch]) -> Handle:
        """Start the supervisors, which wait at the gate until run.json has `launched`, and then start their programs.
        If the agent dies before, the gate opens and they exit."""
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
                    for pid in pids.values():  # our children, not reaped: the pids are valid
                        os.kill(pid, signal.SIGKILL)
                    message = f"Its supervisor could not be started: {error.strerror}."
                    raise StartFailed(launch.task, message, Reason.HOST_FAILED) from error
            launched = record.model_copy(update={"pids": pids, "launched": True})
            self._write(launched)
        return launched

    def _spawn(self, directory: Path) -> int:
        lock = try_lock(directory / "alive")
        if lock is None:
            raise OSError(0, "another supervisor holds its directory")
        command = [sys.executable, "-I", "-S", supervisor_program.__file__, str(directory), str(_LOCK_FD)]
        errors = os.open(directory / "supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
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
                setsigmask=[signal.SIGTERM],  # until it has handlers: see supervisor_program.main
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
        alive = self._alive(record.run_id, task)  # checked first: a supervisor writes before it exits
        ended = self._read(directory / "exit.json", _Ended)
        closed = (directory / "done.json").exists()
        if not alive and not (ended and closed):
            try:
                ended, closed = self._record_vanished(record.run_id, task, ended), True
            except (
                OSError,
                process_tags.StillAlive,
            ) as error:  # reported as alive until a later attempt succeeds
                self._warn_once(f"the exit of {task} of run {record.run_id} cannot be recorded yet: {error}")
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
        if closed:  # before that the supervisor may still be killed
            self._final[key] = report
        return report

    def _record_vanished(self, run_id: str, task: str, ended: _Ended | None) -> _Ended:
        """Record the exit of a replica whose supervisor was killed: kill its orphans, close its log. Raises OSError or
        StillAlive if that cannot be done now."""
        process_tags.kill_tagged(run_id, task, _KILL_ORPHANS_S)
        directory = self._runs / run_id / task
        (directory / supervisor_program.RESERVE).unlink(missing_ok=True)  # disk space for these files
        if ended is None:
            vanished = {"time": supervisor_program.rfc3339(time.time_ns()), "monotonic": time.monotonic()}
            ended = _Ended.model_validate(vanished)
            write_json(directory / "exit.json", vanished)
        write_json(directory / "done.json", {"supervisor": "killed"})
        return ended

    def _stop(self, run_id: str) -> _Stop | None:
        return self._read(self._runs / run_id / "stop.json", _Stop) or self._stops.get(run_id)

    def _kill_all(self, run_id: str) -> None:
        """Kill every process of the run. Raises StillAlive."""
        record = self._record(run_id)
        tasks = list(record.addresses) if record else [path.name for path in (self._runs / run_id).glob("*/")]
        self.stop(run_id, 0.0)
        if record is None:  # run.json is damaged: a supervisor exits after its program
            process_tags.kill_tagged(run_id)
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while tasks := [task for task in tasks if self._alive(run_id, task)]:
            late = time.monotonic() - deadline
            if late > _KILL_TIMEOUT_S:
                raise process_tags.StillAlive(
                    f"the supervisors of {', '.join(tasks)} of run {run_id} do not end"
                )
            if record and late > 0:
                for task in tasks:
                    with contextlib.suppress(ProcessLookupError, KeyError):
                        os.kill(record.pids[task], signal.SIGKILL)
            self._reap()
            time.sleep(_PAUSE_S)
        process_tags.kill_tagged(run_id)

    def _alive(self, run_id: str, task: str) -> bool:
        return is_locked(self._runs / run_id / task / "alive")

    def _reap(self) -> None:
        """Reap the supervisors that are children of this process; init reaps the others."""
        for pid in list(self._children):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._children.discard(pid)

    def _records(self) -> list[_Record]:
        records: list[_Record] = []
        for path in sorted(self._runs.iterdir()):
            try:
                record = self._record(path.name)
            except OSError as error:
                self._warn_once(f"{path} cannot be read: {error}")
            else:
                records += [record] if record else []
        return records

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
        """The content of a file; None for a missing or damaged one."""
        try:
            value = read_json(path)
            return None if value is None else kind.model_validate(value)
        except (DamagedFile, ValidationError) as error:
            self._warn_once(f"{path} is ignored: {error}")
            return None

    def _warn_once(self, message: str) -> None:
        """Log a warning, the same message only once."""
        if message not in self._warned:
            _log.warning("%s", message)
        self._warned.add(message)


def replica_environment(
    run_id: str, launch: Launch, directory: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """All variables of one replica. `inherited` is the agent's environment, of which PASSED_ON is used."""
    path = inherited.get("PATH", os.defpath)
    return {
        **{name: inherited[name] for name in PASSED_ON if name in inherited},
        "PATH": f"{Path(launch.command[0]).parent}{os.pathsep}{path}",
        "PYTHONUNBUFFERED": "1",  # so that a line is in the log when it is printed
        "TMPDIR": str(directory / "tmp"),
        **launch.environment,
        "CUDA_VISIBLE_DEVICES": ",".join(launch.gpus),
        **process_tags.tag(run_id, launch.task),
    }


def _spec(run_id: str, launch: Launch, directory: Path) -> dict[str, object]:
    """The content of launch.json. Raises StartFailed if there is no such program on this machine."""
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
