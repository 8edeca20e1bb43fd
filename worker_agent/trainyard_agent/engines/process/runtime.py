"""The process runtime: each replica is a process of this machine, under its own supervisor (`supervisor.py`).

All state is in `runs/RUN/` of the agent's state directory: run.json is the handle, and is replaced atomically with
`launched` set when the run starts; the supervisors write the rest. A supervisor lives as long as its `alive` file is
locked, so nothing depends on process ids, which the kernel may reuse.

Where the agent is root, the programs of a run have a user of their own (`host/job_users.py`). To it alone belong the
directories `work` of its replicas, and their temporary ones (`temporary.py`); it may pass through those above `work`,
and neither read nor change what the agent and the supervisors keep there.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import NamedTuple

from pydantic import AwareDatetime, BaseModel, Field

from trainyard_agent.control.keeping import kept
from trainyard_agent.engines.process.held_output import SECRETS_FD, HeldOutput
from trainyard_agent.engines.process.temporary import TemporaryDirectories
from trainyard_agent.host import disk, process_tags, procfs, unix_users, wake_pipe
from trainyard_agent.host import environment as job_environment
from trainyard_agent.host.files import is_locked, try_lock, write_json, write_private
from trainyard_agent.host.job_users import JobUsers
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.peers.reach import Reach
from trainyard_agent.runtimes import fork_server, ports
from trainyard_agent.runtimes import supervisor as supervisor_program
from trainyard_agent.runtimes.attaching import beside
from trainyard_agent.runtimes.attaching.attachment import Attachment, NotAttachable
from trainyard_agent.runtimes.attaching.local_command import LocalCommand, LocalConnection
from trainyard_agent.runtimes.base import HOST, METRIC_FILE, PROCESSES, STOPPED, Handle, Launch, StartFailed, metric_tag
from trainyard_agent.runtimes.exits import StopOrder, code_of_status, exit_report
from trainyard_agent.runtimes.fork_server import Forked
from trainyard_agent.runtimes.run_directories import (
    MOUNTS,
    RunDirectories,
    is_run_id,
    link_mounts,
    metric_file,
    mount_variables,
    secret_path,
    write_secret_files,
)
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.agents import RuntimeName
from trainyard_protocol.wire.attachments import Terminal
from trainyard_protocol.wire.sync import ReplicaReport, RunOrder

_LOCK_FD, _SECRETS_FD = 3, SECRETS_FD
_SECRETS = "secrets"
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
    """started.json: when the program started, its pid, and by stream the descriptors of its supervisor's spool."""

    time: AwareDatetime
    pid: int = 0
    spools: dict[str, tuple[int, int]] = Field(default_factory=dict)


class _Ended(BaseModel):
    """exit.json: how and when the program ended. Neither status nor failure: unknown."""

    time: AwareDatetime
    monotonic: float
    status: int | None = None
    failure: str = ""


class _Files(NamedTuple):
    """The files of a replica, looked at each second: a path that is made anew takes longer than to look at its file."""

    alive: Path
    started: Path
    exit: Path
    done: Path

    @classmethod
    def of(cls, directory: Path) -> "_Files":
        return cls(*(directory / name for name in ("alive", "started.json", "exit.json", "done.json")))


class ProcessRuntime(RunDirectories[_Record]):
    traits = HOST

    def __init__(
        self, state_dir: Path, users: JobUsers | None = None, processes: int = PROCESSES, reach: Reach | None = None
    ) -> None:
        """New runs have the agent's user without `users`, and those that have another keep it. Parts of runs over
        several agents need `reach`."""
        self._reach = reach or Reach()
        self._users = users or JobUsers(state_dir)
        self._temporary = TemporaryDirectories(state_dir)
        self._processes = processes
        super().__init__(state_dir / "runs", _Record, _log)
        self._changes = state_dir / supervisor_program.CHANGES
        self._final: dict[tuple[str, str], ReplicaReport] = {}
        self._starts: dict[tuple[str, str], _Started] = {}
        self._replica_files: dict[tuple[str, str], _Files] = {}
        self._outputs: dict[tuple[str, str], HeldOutput] = {}
        self._stops: dict[str, _Stop] = {}
        """Stops that a full disk refused. They are lost with this agent."""

    def recover(self) -> list[Handle]:
        with self._lock:
            launched = self._recovered()
            for run_id in self._temporary.run_ids():
                if not (self._runs / run_id).exists():
                    self.remove(run_id)
            for record in launched:
                for task in record.pids:
                    self._hold_output(record, task)
            return list(launched)

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return wake_pipe.listen(self._changes, changed)

    def place(self, order: RunOrder) -> Handle:
        run_id, replicas = order.run_id, order.replicas
        with self._lock:
            record = self._record(run_id)
            if record is not None:
                return record
            first = replicas[0].task
            if not is_run_id(run_id):
                raise StartFailed(first, f"{run_id!r} is not a run id.")
            taken = [address for other in self._records() for address in other.addresses.values()]
            among, host = (self._reach.ports, self._reach.address) if order.spread else (None, "127.0.0.1")
            try:
                addresses = ports.addresses(host, [replica.task for replica in replicas], taken, among)
                self._make_directories(run_id, [Task.parse(replica.task).name for replica in replicas])
                (self._runs / run_id / "gate").touch(mode=0o600)
                record = _Record(
                    run_id=run_id,
                    addresses=addresses,
                    grace_s=order.grace_s,
                    metric_tag=metric_tag(order),
                    interface=self._reach.interface if order.spread else "",
                    user=self._users.of(run_id),
                )
                self._write(record)
            except (OSError, ports.NoFreePort, ValueError) as error:
                self.remove(run_id)
                words = disk.in_words(error) if isinstance(error, OSError) else str(error)
                raise StartFailed(first, f"There is no room for it: {words}.", Reason.HOST_FAILED) from error
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
                words = f"It could not be started: {disk.in_words(error)}."
                raise StartFailed(launches[0].task, words, Reason.HOST_FAILED) from error

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        with self._lock:
            record = self._record(run_id)
            if record is None:
                return ()
            return tuple(self._observe(record, task) for task in record.addresses)

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:
        started = self._started(run_id, task)
        # The supervisor reaps the program only after it has written exit.json, so until then the pid is valid.
        if started is None or not self._alive(run_id, task) or self._files_of(run_id, task).exit.exists():
            return ()
        tree = procfs.tree(started.pid)
        return (*tree, *sorted(set(process_tags.tagged(run_id, task, self._users.of(run_id))) - set(tree)))

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        record, files = self._record(run_id), self._files_of(run_id, task)
        if record is None or not self._alive(run_id, task) or files.exit.exists():
            return None
        supervisor = record.pids.get(task)
        if supervisor is None or not files.started.exists():
            return None
        # All processes descend from the supervisor, which reaps orphans: no CPU time is lost.
        tree = procfs.tree(supervisor)[1:]
        cpu_s = procfs.cpu_s(supervisor, own=False) + sum(map(procfs.cpu_s, tree))
        return ReplicaUse(cpu_s, sum(map(procfs.resident_bytes, tree))) if tree else None

    def execute(self, run_id: str, task: str, command: Sequence[str], terminal: Terminal | None) -> Attachment:
        record = self._running(run_id, task)
        user = self._users.of(run_id)
        where = [str(self._runs / run_id / task), str(user or 0), str(self._processes * len(record.addresses))]
        beside_it = [sys.executable, "-I", "-S", beside.__file__, *where, *command]
        return LocalCommand(beside_it, terminal, self._runs.parent, user=user)

    def connect(self, run_id: str, task: str, port: int) -> Attachment:
        self._running(run_id, task)
        return LocalConnection(port)

    def _running(self, run_id: str, task: str) -> _Record:
        """Raises NotAttachable."""
        record = self._record(run_id)
        if record is None or not self.processes(run_id, task):
            raise NotAttachable(f"{task} does not run.")
        return record

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
                self._files.warn_once(f"stop.json of run {run_id} cannot be written; it is stopped without: {error}")
            for task in alive:
                with contextlib.suppress(ProcessLookupError):  # it ended in between
                    os.kill(record.pids[task], signal.SIGTERM)
                    os.kill(record.pids[task], signal.SIGCONT)  # its program may have suspended it

    def remove(self, run_id: str) -> None:
        with self._lock:
            path = self._runs / run_id
            if not is_run_id(run_id):
                return
            if not path.exists():
                # Somebody removed the directory of a run that goes on.
                process_tags.kill_tagged(run_id, user=self._users.of(run_id))
                self._remove_temporary(run_id)
                return
            self._kill_all(run_id)
            path.chmod(0o700)
            self._remove_temporary(run_id)
            self._remove_directory(run_id)
            self._users.release(run_id)
            self._stops.pop(run_id, None)
            self._final = {key: report for key, report in self._final.items() if key[0] != run_id}
            self._starts = {key: started for key, started in self._starts.items() if key[0] != run_id}
            self._replica_files = {key: files for key, files in self._replica_files.items() if key[0] != run_id}
            for key in [key for key in self._outputs if key[0] == run_id]:
                self._outputs.pop(key).close()

    def has_ended(self, run_id: str) -> bool:
        """Whether every process of the run is dead and its logs are complete. Unknown run: True."""
        self.observe(run_id)  # records the exits of supervisors that were killed
        record = self._record(run_id)
        tasks = list(record.addresses) if record and record.launched else []
        return all(self._files_of(run_id, task).done.exists() and not self._alive(run_id, task) for task in tasks)

    def _launch(self, record: _Record, launches: Sequence[Launch]) -> Handle:
        """Start the supervisors, which wait at the gate until run.json has `launched`, and then start their programs.
        If the agent dies before, the gate opens and they exit."""
        run = self._runs / record.run_id
        with (run / "gate").open("r+b") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            user = self._users.of(record.run_id)
            if launches[0].mounts:
                unix_users.make_passage(run / MOUNTS, user)
                link_mounts(run, launches[0].mounts)
            for launch in launches:
                temporary = self._temporary.of(record.run_id, launch.task)
                spec = _spec(record.run_id, launch, run / launch.task, temporary, user)
                spec["processes"] = self._processes * len(launches)
                if record.interface and os.geteuid() == 0:
                    spec["host_name"] = record.addresses[launch.task].rpartition(":")[0]
                write_private(run / launch.task / "launch.json", json.dumps(spec))
                secrets = run / launch.task / _SECRETS
                write_secret_files(secrets, launch.secret_files)
                if launch.secret_files and user is not None:
                    unix_users.give(secrets, user)  # the last step, so that nobody is in there before
            with contextlib.ExitStack() as handles:
                started: dict[str, Forked] = {}
                for launch in launches:
                    try:
                        started[launch.task] = self._spawn(run / launch.task, launch)
                    except OSError as error:
                        for supervisor in started.values():
                            supervisor.kill()
                        message = f"Its supervisor could not be started: {error.strerror}."
                        raise StartFailed(launch.task, message, Reason.HOST_FAILED) from error
                    handles.callback(started[launch.task].close)
            pids = {task: supervisor.pid for task, supervisor in started.items()}
            launched = record.model_copy(update={"pids": pids, "launched": True})
            self._write(launched)
        return launched

    def _make_directories(self, run_id: str, tasks: Sequence[str]) -> None:
        user = self._users.assign(run_id)
        run = self._runs / run_id
        unix_users.make_passage(run, user)
        for task in tasks:
            unix_users.make_passage(run / task, user)
            unix_users.make_private(run / task / "work", user)
        self._temporary.make(run_id, tasks, user)

    def _remove_temporary(self, run_id: str) -> None:
        """Remove its temporary directories. What cannot be removed is warned of, and keeps its record."""
        try:
            self._temporary.remove(run_id)
        except OSError as error:
            self._files.warn_once(
                f"temporary files of run {run_id} cannot be removed; the next agent tries again: {error}"
            )

    def _spawn(self, directory: Path, launch: Launch) -> Forked:
        lock = try_lock(directory / "alive")
        if lock is None:
            raise OSError(0, "another supervisor holds its directory")
        arguments: list[str | int] = [str(directory), _LOCK_FD]
        secrets: list[int] = []
        if launch.secret_values:
            secrets.append(_secrets_in_memory(launch))
            arguments.append(_SECRETS_FD)
        errors = os.open(directory / "supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        files = [nothing, nothing, errors, lock, *secrets]
        try:
            return fork_server.SHARED.start(supervisor_program.__name__, arguments, files)
        finally:
            for fd in {lock, errors, nothing, *secrets}:
                os.close(fd)

    def _observe(self, record: _Record, task: str) -> ReplicaReport:
        key = (record.run_id, task)
        if key in self._final:
            return self._final[key]
        address = record.addresses[task]
        if not record.launched:
            return ReplicaReport(task=task, state=ReplicaState.PENDING, address=address)
        files = self._files_of(*key)
        alive = self._alive(*key)  # checked first: a supervisor writes before it exits
        ended = self._files.read(files.exit, _Ended) if files.exit.exists() else None
        closed = files.done.exists()
        if not alive and not (ended and closed):
            try:
                ended, closed = self._record_vanished(record.run_id, task, ended), True
            except (OSError, process_tags.StillAlive) as error:  # reported as alive until a later attempt succeeds
                self._files.warn_once(f"the exit of {task} of run {record.run_id} cannot be recorded yet: {error}")
        if alive and not closed:
            self._hold_output(record, task)
        started = self._started(record.run_id, task)
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
            if output := self._outputs.pop(key, None):
                output.close()
        return report

    def _hold_output(self, record: _Record, task: str) -> None:
        """Open what the supervisor has of its program's output, unless that was done: it may be killed."""
        key = (record.run_id, task)
        started = self._started(*key)
        if key in self._outputs or started is None or not started.spools or task not in record.pids:
            return
        try:
            output = HeldOutput.of(record.pids[task], started.spools)
        except OSError as error:  # it is just ending, or its files cannot be opened
            if self._alive(*key):
                self._files.warn_once(f"the output of {task} of run {record.run_id} is not held: {error}")
            return
        if self._alive(*key):  # else the pid may be another process's
            self._outputs[key] = output
        else:
            output.close()

    def _record_vanished(self, run_id: str, task: str, ended: _Ended | None) -> _Ended:
        """Record the exit of a replica whose supervisor was killed, or has lost its directory: kill its orphans, close
        its log. Raises OSError or StillAlive if that cannot be done now."""
        process_tags.kill_tagged(run_id, task, _KILL_ORPHANS_S, user=self._users.of(run_id))
        directory = self._runs / run_id / task
        directory.mkdir(mode=0o700, exist_ok=True)  # its program may have removed it
        (directory / supervisor_program.RESERVE).unlink(missing_ok=True)  # disk space for these files
        if ended is None:
            vanished = {"time": supervisor_program.rfc3339(time.time_ns()), "monotonic": time.monotonic()}
            ended = _Ended.model_validate(vanished)
            write_json(directory / "exit.json", vanished)
        output = self._outputs.get((run_id, task))
        lines = None if output is None else output.finish(directory)
        write_json(directory / "done.json", {"supervisor": "killed", "lines": lines})
        return ended

    def _started(self, run_id: str, task: str) -> _Started | None:
        started = self._starts.get((run_id, task))
        if started is None:
            started = self._files.read(self._files_of(run_id, task).started, _Started)
            if started is not None:
                self._starts[run_id, task] = started
        return started

    def _stop(self, run_id: str) -> _Stop | None:
        return self._files.read(self._runs / run_id / "stop.json", _Stop) or self._stops.get(run_id)

    def _kill_all(self, run_id: str) -> None:
        """Kill every process of the run. Raises StillAlive."""
        record = self._record(run_id)
        tasks = list(record.addresses) if record else [path.name for path in (self._runs / run_id).glob("*/")]
        self.stop(run_id, 0.0)
        if record is None:  # run.json is damaged: a supervisor exits after its program
            process_tags.kill_tagged(run_id, user=self._users.of(run_id))

        def alive() -> list[str]:
            return [task for task in tasks if self._alive(run_id, task)]

        if not wait_until(lambda: not alive(), deadline_in(_KILL_TIMEOUT_S), _PAUSE_S):
            pids = record.pids if record else {}
            for task in pids.keys() & set(alive()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[task], signal.SIGKILL)
            if not wait_until(lambda: not alive(), deadline_in(_KILL_TIMEOUT_S), _PAUSE_S):
                raise process_tags.StillAlive(f"the supervisors of {', '.join(alive())} of run {run_id} do not end")
        self._users.kill_processes(run_id)
        process_tags.kill_tagged(run_id, user=self._users.of(run_id))

    def _alive(self, run_id: str, task: str) -> bool:
        return is_locked(self._files_of(run_id, task).alive)

    def _files_of(self, run_id: str, task: str) -> _Files:
        files = self._replica_files.get((run_id, task))
        if files is None:
            files = self._replica_files[run_id, task] = _Files.of(self._runs / run_id / task)
        return files


def replica_environment(
    run_id: str,
    launch: Launch,
    directory: Path,
    inherited: Mapping[str, str],
    temporary: Path | None = None,
    user: int | None = None,
) -> dict[str, str]:
    """All variables of one replica. `inherited` is the agent's environment, of which a part is used."""
    path = inherited.get("PATH", os.defpath)
    return {
        **job_environment.of_replica(inherited, user, directory / "work"),
        "PATH": f"{Path(launch.command[0]).parent}{os.pathsep}{path}",
        "PYTHONUNBUFFERED": "1",  # so that a line is in the log when it is printed
        **({"TMPDIR": str(temporary)} if temporary is not None else {}),
        **({METRIC_FILE: str(metric_file(directory))} if launch.writes_metrics else {}),
        **mount_variables(directory.parent, launch.mounts),
        **launch.environment,
        **{file.variable: str(secret_path(directory / _SECRETS, file.name, file.path)) for file in launch.secret_files},
        "CUDA_VISIBLE_DEVICES": ",".join(launch.gpus),
        **process_tags.tag(run_id, launch.task, directory.parent.parent.parent),
    }


def _spec(run_id: str, launch: Launch, directory: Path, temporary: Path | None, user: int | None) -> dict[str, object]:
    """The content of launch.json. Raises StartFailed if there is no such program on this machine."""
    environment = replica_environment(run_id, launch, directory, os.environ, temporary, user)
    program = shutil.which(launch.command[0], path=environment["PATH"])
    if program is None:
        raise StartFailed(launch.task, f"There is no program {launch.command[0]!r} on this machine.")
    return {
        "command": kept((program, *launch.command[1:]), launch.keep, launch.task, alone=False),
        "environment": environment,
        "directory": str(directory / "work"),
        "temporary": str(temporary or ""),
        "user": user,
        "groups": launch.groups,
        "cpus": list(launch.cpus),
        "log_quota": launch.log_quota_bytes,
    }


def _secrets_in_memory(launch: Launch) -> int:
    """A file that is on no disk, for the supervisor: what it reads at its start."""
    content = {"environment": dict(launch.secrets), "values": launch.secret_values}
    fd = os.memfd_create("secrets")
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(json.dumps(content).encode())
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd
