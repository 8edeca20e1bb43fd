"""The docker runtime: each replica is a container, each run a network that nobody else is on.

What runs is the engine's to know, and is found by its labels. Beside it, `containers/RUN/` of the agent's
state directory holds what must outlive a container: run.json (the handle and the order, with `launched` from
the moment when all containers are there and are to be started), stop.json, and for each replica its log, its
start and its exit. A container that carries our label and belongs to no run here is removed.
"""

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from trainyard_agent.engine import Container, Engine, EngineDown, EngineError, EngineRefused
from trainyard_agent.files import DamagedFile, read_json, remove_tree, write_json
from trainyard_agent.runtimes import containers
from trainyard_agent.runtimes.base import STOPPED, Handle, Launch, LogSlice, StartFailed
from trainyard_agent.runtimes.container_log import LogCopier
from trainyard_agent.runtimes.containers import ImageInfo, Owner
from trainyard_agent.runtimes.exits import never_ran, stopped_exit
from trainyard_agent.runtimes.log_file import LogFile
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.sync import ExitReport, ReplicaReport, RunOrder, RuntimeName

PIDS_LIMIT = 4096
"""Processes and threads that a replica may have, unless the agent was told otherwise."""

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REMOVED = ".removed-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_AT_ONCE = 16  # calls to the engine side by side
_LOOK_S = 1.0  # between two looks at an engine that gave no sign of a change
_PATIENCE_S = 10.0  # for containers and networks that are to go
_PAUSE_S = 0.05
_GONE = "Its container was removed, and not by Trainyard."
_SHUT_DOWN = "The container engine, or its machine, was shut down while it ran."

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_R = TypeVar("_R")
_Key = tuple[str, str]


class _Record(Handle):
    """run.json. `host` is the boot and the engine's process under which the run was last seen alive."""

    order: RunOrder
    memory: dict[str, int] = Field(default_factory=dict)
    host: str = ""


@dataclass(slots=True)
class _Snapshot:
    """The engine's list of our replicas, as of the last look."""

    containers: dict[_Key, Container] = field(default_factory=dict)
    host: str = ""


class DockerRuntime:
    name: RuntimeName = "docker"
    runs_images = True

    def __init__(self, state_dir: Path, engine: Engine, owner: Owner, pids_limit: int = PIDS_LIMIT) -> None:
        self._runs = state_dir / "containers"
        self._runs.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._engine = engine
        self._owner = owner
        self._pids_limit = pids_limit
        self._lock = threading.RLock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="engine")
        self._snapshot = _Snapshot()
        self._next_look = 0.0
        self._trouble = ""
        self._stopping: set[_Key] = set()
        self._copiers: dict[_Key, LogCopier] = {}
        self._logs: dict[_Key, LogFile] = {}
        self._final: dict[_Key, ReplicaReport] = {}
        self._started_at: dict[_Key, datetime | None] = {}

    @staticmethod
    def has_runs(state_dir: Path) -> bool:
        """Whether there may be containers of an agent with this state directory."""
        runs = state_dir / "containers"
        return runs.is_dir() and any(runs.iterdir())

    def close(self) -> None:
        """Leave everything as it is, for another runtime object to find. Containers and the engine go on."""
        for copier in list(self._copiers.values()):
            copier.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def recover(self) -> list[Handle]:
        records = self._records()
        known = {record.run_id for record in records}
        for path in self._runs.iterdir():
            if path.name not in known:
                self._discard(path)
        try:
            for record in records:
                if not record.launched:
                    self.remove(record.run_id)
            self._look(now=True)
            for record in records:
                if record.launched:
                    self._resume(record)
        except EngineError as error:
            self._say(error)
        return [record for record in records if record.launched]

    def place(self, order: RunOrder) -> Handle:
        record = self._record(order.run_id)
        if record is not None:
            return record
        first = order.replicas[0].task
        if not _RUN_ID.fullmatch(order.run_id):
            raise StartFailed(first, f"{order.run_id!r} is no run id.")
        try:
            record = _Record(
                run_id=order.run_id,
                addresses=containers.addresses(order),
                grace_s=order.grace_s,
                order=order,
            )
            for replica in order.replicas:
                (self._runs / order.run_id / replica.task).mkdir(mode=0o700, parents=True)
            self._write(record)
        except (OSError, ValueError) as error:
            remove_tree(self._runs / order.run_id)
            raise StartFailed(first, f"There is no room for it: {error}.", Reason.HOST_FAILED) from error
        return record

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        record = self._record(run_id)
        if record is None:
            raise StartFailed(launches[0].task, "Its run was not placed.")
        if record.launched:
            return record
        try:
            return self._launch(record, launches)
        except (StartFailed, EngineError, OSError) as error:
            self._undo(run_id)
            if isinstance(error, StartFailed):
                raise
            raise StartFailed(launches[0].task, f"{error}.", Reason.HOST_FAILED) from error

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        record = self._record(run_id)
        if record is None:
            return ()
        try:
            self._look()
        except EngineError as error:
            self._say(error)  # it is told as it was last seen: nobody knows better
        return tuple(self._observe(record, task) for task in record.addresses)

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        directory = self._runs / run_id / task
        if not directory.is_dir():
            return LogSlice((), complete=True)
        finished = (directory / "done.json").exists()  # asked first: what is read after it is the rest
        log = self._logs.setdefault((run_id, task), LogFile(directory / "log.jsonl"))
        lines = log.read(start, max_lines, max_bytes)
        more = finished and bool(log.read(start + len(lines), 1, 0))
        return LogSlice(lines, complete=finished and not more)

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        record = self._record(run_id)
        if record is None or not record.launched:
            return
        try:
            self._look(now=True)
        except EngineError as error:
            self._say(error)  # it is stopped as soon as the engine answers again
        alive = [r.task for r in (self._observe(record, task) for task in record.addresses) if r.exit is None]
        if not alive:
            return
        path = self._runs / run_id / "stop.json"
        now = time.monotonic()
        before = read_json(path) or {"reason": reason, "tasks": alive, "kill_at": now + grace_s}
        # Written before the signal goes out: what ends from now on ended after the stop.
        write_json(path, {**before, "kill_at": min(before["kill_at"], now + grace_s)})
        with self._lock:
            self._enforce(record)

    def remove(self, run_id: str) -> None:
        """Raises EngineError when the engine cannot do it now; the run is known until it could."""
        path = self._runs / run_id
        if not _RUN_ID.fullmatch(run_id) or not path.exists():
            return
        self._clear(run_id)
        gone = self._runs / f"{_REMOVED}{run_id}"
        path.rename(gone)  # at once for whoever reads a log in this moment
        for key in [key for key in self._copiers if key[0] == run_id]:
            self._copiers.pop(key).close()
        self._discard(gone)
        with self._lock:
            self._logs = {key: log for key, log in self._logs.items() if key[0] != run_id}
            self._final = {key: report for key, report in self._final.items() if key[0] != run_id}
            self._started_at = {key: at for key, at in self._started_at.items() if key[0] != run_id}
            self._stopping = {key for key in self._stopping if key[0] != run_id}

    def is_over(self, run_id: str) -> bool:
        """Whether nothing of the run lives any more and its logs are whole. Unknown run: True."""
        reports = self.observe(run_id)
        directory = self._runs / run_id
        return all(r.exit is not None and (directory / r.task / "done.json").exists() for r in reports)

    # Starting.

    def _launch(self, record: _Record, launches: Sequence[Launch]) -> Handle:
        """All containers are there before the first is started; an agent that dies in between starts the rest."""
        order = record.order
        self._clear(record.run_id)  # what an attempt left whose answer was lost
        self._engine.create_network(containers.network_spec(self._owner, order))
        images = {name: self._image(name, launches) for name in {launch.image for launch in launches}}
        gateway = self._engine.gateway()
        ids = self._each(launches, lambda launch: self._create(order, launch, images[launch.image], gateway))
        launched = record.model_copy(
            update={
                "launched": True,
                "host": self._host(),
                "memory": {launch.task: launch.memory_bytes for launch in launches},
            }
        )
        self._write(launched)
        self._each(list(zip(launches, ids, strict=True)), lambda pair: self._start(pair[0].task, pair[1]))
        with self._lock:
            self._next_look = 0.0
            for launch, container in zip(launches, ids, strict=True):
                self._follow(record.run_id, launch.task, container)
        return launched

    def _image(self, name: str, launches: Sequence[Launch]) -> ImageInfo:
        found = self._engine.image(name)
        if found is None:
            task = next(launch.task for launch in launches if launch.image == name)
            raise StartFailed(task, f"Its image {name} is no longer here.", Reason.HOST_FAILED)
        return ImageInfo.of(found)

    def _create(self, order: RunOrder, launch: Launch, image: ImageInfo, gateway: str) -> str:
        program = image.program(launch)
        if not program:
            raise StartFailed(launch.task, "Its image names no program, and the job gives none.")
        spec = containers.container_spec(
            self._owner, order, launch, image, gateway=gateway, pids_limit=self._pids_limit
        )
        try:
            container = self._engine.create(containers.container_name(order, launch.task), spec)
            trouble = self._engine.program_trouble(container, program, image.path)
        except EngineError as error:
            raise StartFailed(launch.task, f"{error}.", Reason.HOST_FAILED) from error
        if trouble:
            raise StartFailed(launch.task, f"{trouble[0].upper()}{trouble[1:]}.")
        return container

    def _start(self, task: str, container: str) -> None:
        try:
            self._engine.start(container)
        except EngineRefused as refused:
            raise StartFailed(task, *containers.refused_start(refused.status, refused.message)) from refused
        except EngineDown as down:
            raise StartFailed(task, f"{down}.", Reason.HOST_FAILED) from down

    def _undo(self, run_id: str) -> None:
        """Nothing of the run is left; what cannot be removed now is, as nobody's, once the engine answers."""
        try:
            self.remove(run_id)
        except (EngineError, OSError) as error:
            _log.warning("run %s is not all removed yet: %s", run_id, error)
            self._discard(self._runs / run_id)

    def _discard(self, path: Path) -> None:
        try:
            remove_tree(path)
        except OSError as error:  # the next agent tries again
            _log.warning("%s cannot be removed: %s", path, error)

    def _clear(self, run_id: str) -> None:
        """No container and no network of the run is left. Raises EngineError."""
        labels = (f"{containers.AGENT}={self._owner.agent_id}", f"{containers.RUN}={run_id}")
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            try:
                left = [c.id for c in self._engine.containers(*labels, _labelled(containers.REPLICA))]
                self._each(left, self._engine.remove)
                networks = self._engine.networks(*labels)
                self._each(list(networks), self._engine.remove_network)
                if not left and not networks:
                    return
            except EngineRefused as refused:  # a network that is still let go of, a container being removed
                if time.monotonic() > give_up_at:
                    raise
                _log.debug("run %s: %s; trying again", run_id, refused)
            if time.monotonic() > give_up_at:
                raise EngineRefused(500, f"the containers of run {run_id} do not go away")
            time.sleep(_PAUSE_S)

    def _resume(self, record: _Record) -> None:
        """What another agent left: start what it had no time to start, and go on with the logs."""
        for task in record.addresses:
            key = (record.run_id, task)
            container = self._snapshot.containers.get(key)
            if container is not None and container.state == "created":
                try:
                    self._start(task, container.id)
                except StartFailed as failure:
                    self._finish(record, task, None, _never_started(failure))
                self._next_look = 0.0
            done = (self._runs / record.run_id / task / "done.json").exists()
            if container is not None and not done and key not in self._copiers:
                self._follow(record.run_id, task, container.id)

    # Watching.

    def _look(self, now: bool = False) -> None:
        """Ask the engine how our replicas stand, if there may be something new. Raises EngineError."""
        with self._lock:
            if not now and time.monotonic() < self._next_look:
                return
            self._next_look = time.monotonic() + _LOOK_S
            mine = (f"{containers.AGENT}={self._owner.agent_id}", _labelled(containers.REPLICA))
            # The engine's process first: what is found under a new one may have ended with the old one.
            host = self._host()
            listed = self._engine.containers(*mine)
            if self._trouble:
                _log.info("the container engine answers again")
                self._trouble = ""
            found = {_key(container): container for container in listed}
            self._snapshot = _Snapshot(found, host)
            records = {record.run_id: record for record in self._records()}
            self._remove_strangers(found, records)
            for record in records.values():
                if record.launched:
                    self._see_alive(record)
                    self._enforce(record)

    def _remove_strangers(self, found: Mapping[_Key, Container], known: Mapping[str, _Record]) -> None:
        """Containers that carry our label and belong to no run: the rest of one that was undone without
        the engine."""
        for run_id in {run_id for run_id, _ in found} - known.keys():
            _log.warning("removing what is left of run %s", run_id)
            self._clear(run_id)

    def _see_alive(self, record: _Record) -> None:
        """Remember under which engine the run still lived."""
        if record.host == self._snapshot.host:
            return
        keys = [(record.run_id, task) for task in record.addresses]
        if any(
            key in self._snapshot.containers and self._snapshot.containers[key].state == "running"
            for key in keys
        ):
            self._write(record.model_copy(update={"host": self._snapshot.host}))

    def _observe(self, record: _Record, task: str) -> ReplicaReport:
        key = (record.run_id, task)
        if key in self._final:
            return self._final[key]
        address = record.addresses[task]
        if not record.launched:
            return ReplicaReport(task=task, state=ReplicaState.PENDING, address=address)
        directory = self._runs / record.run_id / task
        told = read_json(directory / "exit.json")
        if told is not None:
            self._final[key] = ReplicaReport.model_validate(told)
            return self._final[key]
        container = self._snapshot.containers.get(key)
        state = containers.STATES[container.state] if container else ReplicaState.RUNNING
        try:
            if container is None or state is ReplicaState.EXITED:
                seen = self._engine.inspect(containers.container_name(record.order, task))
                if seen is None:
                    return self._finish(record, task, None, _vanished())
                if key not in self._copiers:
                    self._follow(*key, seen["Id"])
                if containers.STATES[seen["State"]["Status"]] is ReplicaState.EXITED:
                    started = containers.moment(seen["State"]["StartedAt"])
                    return self._finish(record, task, started, self._exit(record, task, seen["State"]))
                state = containers.STATES[seen["State"]["Status"]]
        except EngineError as error:
            self._say(error)
            state = ReplicaState.RUNNING
        return ReplicaReport(
            task=task, state=state, address=address, started_at=self._started(record, task, container)
        )

    def _started(self, record: _Record, task: str, container: Container | None) -> datetime | None:
        key = (record.run_id, task)
        if container is None or containers.STATES[container.state] is ReplicaState.STARTING:
            return None
        if key not in self._started_at:
            try:
                seen = self._engine.inspect(container.id)
            except EngineError as error:
                self._say(error)
                return None
            self._started_at[key] = containers.moment(seen["State"]["StartedAt"]) if seen else None
        return self._started_at[key]

    def _exit(self, record: _Record, task: str, state: Mapping[str, Any]) -> ExitReport:
        how = containers.exit_of(state, record.memory.get(task, 0))
        stop = read_json(self._runs / record.run_id / "stop.json")
        if stop is not None and task in stop["tasks"]:
            return stopped_exit(how.code, Reason(stop["reason"]), how.finished_at)
        if record.host != self._snapshot.host and not self._survived(record):
            return how.model_copy(update={"reason": Reason.HOST_SHUTDOWN, "message": _SHUT_DOWN})
        return how

    def _survived(self, record: _Record) -> bool:
        """Whether containers outlive what happened to the host since: another engine process, which leaves
        them alone on request, but not another boot."""
        same_boot = record.host.partition(" ")[0] == self._snapshot.host.partition(" ")[0]
        return same_boot and self._engine.about().live_restore

    def _finish(
        self, record: _Record, task: str, started_at: datetime | None, how: ExitReport
    ) -> ReplicaReport:
        """Write down an exit before it is told: it never changes."""
        report = ReplicaReport(
            task=task,
            state=ReplicaState.EXITED,
            address=record.addresses[task],
            started_at=started_at,
            exit=how,
        )
        directory = self._runs / record.run_id / task
        write_json(directory / "exit.json", report.model_dump(mode="json"))
        if (record.run_id, task) not in self._copiers:  # nothing is left to be copied
            write_json(directory / "done.json", {})
        self._final[(record.run_id, task)] = report
        return report

    # Stopping.

    def _enforce(self, record: _Record) -> None:
        """Have every container end that was told to: SIGTERM once, SIGKILL when its time has come."""
        stop = read_json(self._runs / record.run_id / "stop.json")
        if stop is None:
            return
        left_s = stop["kill_at"] - time.monotonic()
        for task in stop["tasks"]:
            key = (record.run_id, task)
            container = self._snapshot.containers.get(key)
            if container is None or containers.STATES[container.state] is ReplicaState.EXITED:
                continue
            if left_s <= 0 and key in self._stopping:
                self._pool.submit(self._tell, self._engine.kill, container.id)
            elif key not in self._stopping:
                self._stopping.add(key)
                # A thread of its own, which waits as long as the engine does; the engine goes on without it.
                stopper = threading.Thread(
                    target=self._stop, args=(key, container.id, max(0, math.ceil(left_s))), daemon=True
                )
                stopper.start()
            self._next_look = min(self._next_look, max(stop["kill_at"], time.monotonic() + _PAUSE_S))

    def _stop(self, key: _Key, container: str, grace_s: int) -> None:
        if not self._tell(self._engine.stop, container, grace_s):
            self._stopping.discard(key)  # told again at the next look
        self._next_look = 0.0

    def _tell(self, call: Callable[..., None], *arguments: object) -> bool:
        try:
            call(*arguments)
        except EngineError as error:
            self._say(error)
            return False
        return True

    # Logs.

    def _follow(self, run_id: str, task: str, container: str) -> None:
        def is_over() -> bool:
            seen = self._engine.inspect(container)
            self._next_look = 0.0
            return seen is None or containers.STATES[seen["State"]["Status"]] is ReplicaState.EXITED

        copier = LogCopier(self._engine, container, self._runs / run_id / task, is_over)
        self._copiers[(run_id, task)] = copier
        copier.start()

    # Small things.

    def _each(self, items: Iterable[_T], call: Callable[[_T], _R]) -> list[_R]:
        """Side by side, all to their end; then the first error, if there was one."""
        futures = [self._pool.submit(call, item) for item in items]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _host(self) -> str:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {self._engine.process()}"

    def _say(self, error: EngineError) -> None:
        """The same trouble only once."""
        if error.message != self._trouble:
            _log.warning("%s. Containers go on; trying again.", error.message)
        self._trouble = error.message

    def _records(self) -> list[_Record]:
        found = (self._record(path.name) for path in sorted(self._runs.iterdir()))
        return [record for record in found if record is not None]

    def _record(self, run_id: str) -> _Record | None:
        if not _RUN_ID.fullmatch(run_id):
            return None
        try:
            value = read_json(self._runs / run_id / "run.json")
            return _Record.model_validate(value) if value else None
        except (DamagedFile, ValidationError) as error:
            _log.error("run %s is not known any more: %s", run_id, error)
            return None

    def _write(self, record: _Record) -> None:
        write_json(self._runs / record.run_id / "run.json", record.model_dump(mode="json"))


def _labelled(role: str) -> str:
    return f"{containers.ROLE}={role}"


def _key(container: Container) -> _Key:
    return container.labels.get(containers.RUN, ""), container.labels.get(containers.TASK, "")


def _vanished() -> ExitReport:
    return ExitReport(code=None, reason=Reason.VANISHED, message=_GONE, finished_at=datetime.now(UTC))


def _never_started(failure: StartFailed) -> ExitReport:
    return never_ran(failure.reason, failure.message, datetime.now(UTC))
