"""The docker runtime: each replica is a container, each run a network that nobody else is on.

What runs is the engine's to know, and is found by its labels; what must outlive it is kept in files
(`run_files`). A container that carries our label and belongs to no run here is removed.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from trainyard_agent.host import procfs as process_table
from trainyard_agent.runtimes.base import STOPPED, Handle, Launch, LogSlice, StartFailed
from trainyard_agent.runtimes.docker import spec as containers
from trainyard_agent.runtimes.docker.engine import (
    Container,
    Engine,
    EngineDown,
    EngineError,
    EngineRefused,
)
from trainyard_agent.runtimes.docker.log_copier import LogCopier
from trainyard_agent.runtimes.docker.spec import ImageInfo, Owner
from trainyard_agent.runtimes.exits import never_ran, stopped_exit
from trainyard_agent.runtimes.run_files import Key, Record, RunFiles
from trainyard_agent.runtimes.use import Use
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.sync import ExitReport, ReplicaReport, RunOrder, RuntimeName

PIDS_LIMIT = 4096
"""Processes and threads that a replica may have, unless the agent was told otherwise."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DIRECTORY = "containers"
_AT_ONCE = 16  # calls to the engine side by side
_LOOK_S = 1.0  # between two looks at an engine that gave no sign of a change
_SUBNETS_TRIED = 5  # somebody else may be faster to take one
_PATIENCE_S = 10.0  # for containers and networks that are to go
_PAUSE_S = 0.05
_GONE = "Its container was removed, and not by Trainyard."
_SHUT_DOWN = "The container engine, or its machine, was shut down while it ran."

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True)
class _Snapshot:
    """The engine's list of our replicas, as of the last look."""

    containers: dict[Key, Container] = field(default_factory=dict)
    host: str = ""


class DockerRuntime:
    name: RuntimeName = "docker"
    runs_images = True

    def __init__(self, state_dir: Path, engine: Engine, owner: Owner, pids_limit: int = PIDS_LIMIT) -> None:
        self._files = RunFiles(state_dir / _DIRECTORY)
        self._engine = engine
        self._owner = owner
        self._pids_limit = pids_limit
        self._lock = threading.RLock()
        self._networks = threading.Lock()
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="engine")
        self._snapshot = _Snapshot()
        self._next_look = 0.0
        self._trouble = ""
        self._resumed: set[str] = set()
        self._stopping: set[Key] = set()
        self._copiers: dict[Key, LogCopier] = {}
        self._started_at: dict[Key, datetime | None] = {}

    @staticmethod
    def has_runs(state_dir: Path) -> bool:
        """Whether there may be containers of an agent with this state directory."""
        runs = state_dir / _DIRECTORY
        return runs.is_dir() and any(runs.iterdir())

    def close(self) -> None:
        """Leave everything as it is, for another runtime object to find. Containers and the engine go on."""
        for copier in list(self._copiers.values()):
            copier.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def recover(self) -> list[Handle]:
        self._files.sweep()
        try:
            for record in self._files.records():
                if not record.launched:
                    self.remove(record.run_id)
            self._look(now=True)
            mine = self._engine.networks(f"{containers.AGENT}={self._owner.agent_id}")
            self._remove_strangers({labels.get(containers.RUN, "") for labels in mine.values()})
        except (EngineError, OSError) as error:
            self._say(error)  # it is looked at again with every observation
        return [record for record in self._files.records() if record.launched]

    def place(self, order: RunOrder) -> Handle:
        known = self._files.record(order.run_id)
        if known is not None:
            return known
        try:
            record = Record(
                run_id=order.run_id,
                addresses=containers.addresses(order),
                grace_s=order.grace_s,
                order=order,
            )
            self._files.create(record)
        except (OSError, ValueError) as error:
            trouble = f"There is no room for it: {error}."
            raise StartFailed(order.replicas[0].task, trouble, Reason.HOST_FAILED) from error
        return record

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        record = self._files.record(run_id)
        if record is None:
            raise StartFailed(launches[0].task, "Its run was not placed.")
        if record.launched:
            return record
        try:
            return self._launch(record, launches)
        except (StartFailed, EngineError, OSError, ValueError) as error:
            self._undo(run_id)
            if isinstance(error, StartFailed):
                raise
            raise StartFailed(launches[0].task, f"{error}.", Reason.HOST_FAILED) from error

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        record = self._files.record(run_id)
        if record is None:
            return ()
        try:
            self._look()
        except (EngineError, OSError) as error:
            self._say(error)  # it is told as it was last seen: nobody knows better
        return tuple(self._observe(record, task) for task in record.addresses)

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        return self._files.read_log(run_id, task, start, max_lines, max_bytes)

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:
        record = self._files.record(run_id)
        if record is None or task not in record.addresses or not record.launched:
            return ()
        try:
            seen = self._engine.inspect(containers.container_name(record.order, task))
        except EngineError as error:
            self._say(error)
            return ()
        first = int(seen["State"]["Pid"]) if seen is not None else 0
        # The engine may live in another pid namespace, where the same number is somebody else.
        if seen is None or not first or not process_table.is_in_container(first, str(seen["Id"])):
            return ()
        return process_table.tree(first)

    def usage(self, run_id: str, task: str) -> Use | None:
        container = self._snapshot.containers.get((run_id, task))
        if container is None or containers.STATES[container.state] is not ReplicaState.RUNNING:
            return None
        try:
            said = self._engine.stats(container.id)
        except EngineError as error:
            self._say(error)
            return None
        return containers.use_of(said) if said is not None else None

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        record = self._files.record(run_id)
        if record is None or not record.launched:
            return
        try:
            self._look(now=True)
        except (EngineError, OSError) as error:
            self._say(error)  # it is stopped as soon as the engine answers again
        alive = [r.task for r in (self._observe(record, task) for task in record.addresses) if r.exit is None]
        if not alive:
            return
        # Noted before the signal goes out: what ends from now on ended after the stop.
        self._files.tell_stop(run_id, alive, grace_s, reason)
        with self._lock:
            self._enforce(record)

    def remove(self, run_id: str) -> None:
        """Raises EngineError when the engine cannot do it now; the run is known until it could."""
        if self._files.record(run_id) is None:
            return
        self._clear(run_id)
        self._forget(run_id)

    def is_over(self, run_id: str) -> bool:
        """Whether nothing of the run lives any more and its logs are whole. Unknown run: True."""
        reports = self.observe(run_id)
        return all(r.exit is not None and self._files.log_is_closed(run_id, r.task) for r in reports)

    # Starting.

    def _launch(self, record: Record, launches: Sequence[Launch]) -> Handle:
        """All containers are there before the first is started; an agent that dies in between starts the rest."""
        order = record.order
        self._clear(record.run_id)  # what an attempt left whose answer was lost
        addresses = self._make_network(order)
        images = {name: self._image(name, launches) for name in {launch.image for launch in launches}}
        gateway = self._engine.gateway()
        ids = self._each(
            launches, lambda launch: self._create(order, launch, images[launch.image], addresses, gateway)
        )
        launched = record.model_copy(
            update={
                "launched": True,
                "host": self._host(),
                "memory": {launch.task: launch.memory_bytes for launch in launches},
            }
        )
        with self._lock:
            self._resumed.add(record.run_id)  # nobody else starts the rest of it
        self._files.save(launched)
        self._each(list(zip(launches, ids, strict=True)), lambda pair: self._start(pair[0].task, pair[1]))
        with self._lock:
            self._next_look = 0.0
            for launch, container in zip(launches, ids, strict=True):
                self._follow(record.run_id, launch.task, container)
        return launched

    def _make_network(self, order: RunOrder) -> dict[str, str]:
        """The run's network; the addresses of its replicas on it. A lone replica needs none of its own.

        The engine knows best which subnet is free, and takes addresses only on one that it is told: so it is
        asked for a network, and for the same again.
        """
        anywhere = containers.network_spec(self._owner, order)
        if len(order.replicas) == 1:
            self._engine.create_network(anywhere)
            return {}
        for attempt in range(1, _SUBNETS_TRIED + 1):
            with self._networks:  # no other run of ours takes it in between
                network = self._engine.create_network(anywhere)
                subnet = self._engine.subnet(network)
                addresses = containers.ip_addresses(order, subnet)
                self._engine.remove_network(network)
                try:
                    self._engine.create_network(containers.network_spec(self._owner, order, subnet))
                except EngineRefused:
                    if attempt == _SUBNETS_TRIED:
                        raise
                else:
                    return addresses
        raise AssertionError("unreachable")

    def _image(self, name: str, launches: Sequence[Launch]) -> ImageInfo:
        found = self._engine.image(name)
        if found is None:
            task = next(launch.task for launch in launches if launch.image == name)
            raise StartFailed(task, f"Its image {name} is no longer here.", Reason.HOST_FAILED)
        return ImageInfo.of(found)

    def _create(
        self, order: RunOrder, launch: Launch, image: ImageInfo, addresses: Mapping[str, str], gateway: str
    ) -> str:
        program = image.program(launch)
        if not program:
            raise StartFailed(launch.task, "Its image names no program, and the job gives none.")
        spec = containers.container_spec(
            self._owner,
            order,
            launch,
            image,
            addresses=addresses,
            gateway=gateway,
            pids_limit=self._pids_limit,
        )
        try:
            container = self._engine.create(containers.container_name(order, launch.task), spec)
            path = launch.environment.get("PATH", image.path)
            trouble = self._engine.program_trouble(container, program, path, image.directory)
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
            self._clear(run_id)
        except EngineError as error:
            _log.warning("run %s is not all removed yet: %s", run_id, error)
        self._forget(run_id)

    def _forget(self, run_id: str) -> None:
        self._files.discard(run_id)
        for key in [key for key in self._copiers if key[0] == run_id]:
            self._copiers.pop(key).close()
        with self._lock:
            self._resumed.discard(run_id)
            self._started_at = {key: at for key, at in self._started_at.items() if key[0] != run_id}
            self._stopping = {key for key in self._stopping if key[0] != run_id}

    def _clear(self, run_id: str) -> None:
        """No container and no network of the run is left. Raises EngineError."""
        labels = (f"{containers.AGENT}={self._owner.agent_id}", f"{containers.RUN}={run_id}")
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            try:
                left = [c.id for c in self._engine.containers(*labels, _labelled(containers.REPLICA))]
                self._each(left, self._engine.remove)
                networks = self._engine.networks(*labels)
                if not left:  # and yet there is a network: the engine has refused to remove it
                    self._each(list(networks), self._engine.release_network)
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

    def _resume(self, record: Record) -> None:
        """What another agent left: start what it had no time to start, and go on with the logs."""
        self._resumed.add(record.run_id)
        for task in record.addresses:
            key = (record.run_id, task)
            container = self._snapshot.containers.get(key)
            if container is None or self._files.report(*key) is not None:
                continue
            if container.state == "created":
                try:
                    self._start(task, container.id)
                except StartFailed as failure:
                    how = never_ran(failure.reason, failure.message, datetime.now(UTC))
                    self._finish(record, task, None, how)
                self._next_look = 0.0
        for task in record.addresses:
            container = self._snapshot.containers.get((record.run_id, task))
            if container is not None and not self._files.log_is_closed(record.run_id, task):
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
            self._remove_strangers({run_id for run_id, _ in found})
            for record in self._files.records():
                if record.launched:
                    self._see_alive(record)
                    if record.run_id not in self._resumed:
                        self._resume(record)
                    self._enforce(record)

    def _remove_strangers(self, seen: set[str]) -> None:
        """What carries our label and belongs to no run: the rest of one that was undone without the engine,
        or whose directory was removed."""
        for run_id in seen - {record.run_id for record in self._files.records()}:
            _log.warning("removing what is left of run %s", run_id)
            try:
                self._clear(run_id)
            except EngineError as error:
                _log.warning("run %s: %s; trying again", run_id, error)

    def _see_alive(self, record: Record) -> None:
        """Remember under which engine the run still lived."""
        if record.host == self._snapshot.host:
            return
        found = (self._snapshot.containers.get((record.run_id, task)) for task in record.addresses)
        if any(container is not None and container.state == "running" for container in found):
            self._files.save(record.model_copy(update={"host": self._snapshot.host}))

    def _observe(self, record: Record, task: str) -> ReplicaReport:
        told = self._files.report(record.run_id, task)
        if told is not None:
            return told
        address = record.addresses[task]
        if not record.launched:
            return ReplicaReport(task=task, state=ReplicaState.PENDING, address=address)
        container = self._snapshot.containers.get((record.run_id, task))
        state = containers.STATES[container.state] if container else ReplicaState.RUNNING
        try:
            if container is None or state is ReplicaState.EXITED:
                seen = self._engine.inspect(containers.container_name(record.order, task))
                state = containers.STATES[seen["State"]["Status"]] if seen else ReplicaState.EXITED
                if state is ReplicaState.EXITED:
                    return self._ended(record, task, seen)
        except (EngineError, OSError) as error:  # nobody knows better, or it cannot be written down: later
            self._say(error)
            state = ReplicaState.RUNNING
        return ReplicaReport(
            task=task, state=state, address=address, started_at=self._started(record, task, container)
        )

    def _ended(self, record: Record, task: str, seen: dict[str, Any] | None) -> ReplicaReport:
        if seen is None:
            now = datetime.now(UTC)
            gone = ExitReport(code=None, reason=Reason.VANISHED, message=_GONE, finished_at=now)
            return self._finish(record, task, None, gone)
        if (record.run_id, task) not in self._copiers:
            self._follow(record.run_id, task, seen["Id"])
        started = containers.moment(seen["State"]["StartedAt"])
        return self._finish(record, task, started, self._exit(record, task, seen["State"]))

    def _started(self, record: Record, task: str, container: Container | None) -> datetime | None:
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

    def _exit(self, record: Record, task: str, state: Mapping[str, Any]) -> ExitReport:
        how = containers.exit_of(state, record.memory.get(task, 0))
        stop = self._files.stop(record.run_id)
        if stop is not None and task in stop.tasks:
            return stopped_exit(how.code, stop.reason, how.finished_at)
        if record.host != self._snapshot.host and not self._survived(record):
            return how.model_copy(update={"reason": Reason.HOST_SHUTDOWN, "message": _SHUT_DOWN})
        return how

    def _survived(self, record: Record) -> bool:
        """Whether containers outlive what happened to the host since: another engine process, which leaves
        them alone on request, but not another boot."""
        same_boot = record.host.partition(" ")[0] == self._snapshot.host.partition(" ")[0]
        return same_boot and self._engine.about().live_restore

    def _finish(
        self, record: Record, task: str, started_at: datetime | None, how: ExitReport
    ) -> ReplicaReport:
        """Write down an exit before it is told: it never changes."""
        # The engine's two clocks differ by a little.
        if started_at is not None and how.finished_at < started_at:
            how = how.model_copy(update={"finished_at": started_at})
        report = ReplicaReport(
            task=task,
            state=ReplicaState.EXITED,
            address=record.addresses[task],
            started_at=started_at,
            exit=how,
        )
        if (record.run_id, task) not in self._copiers:  # nothing is left to be copied
            self._files.close_log(record.run_id, task)
        self._files.tell_exit(record.run_id, report)
        return report

    # Stopping.

    def _enforce(self, record: Record) -> None:
        """Have every container end that was told to: SIGTERM once, SIGKILL when its time has come."""
        stop = self._files.stop(record.run_id)
        if stop is None:
            return
        left_s = stop.kill_at - time.monotonic()
        for task in stop.tasks:
            key = (record.run_id, task)
            container = self._snapshot.containers.get(key)
            if container is None or containers.STATES[container.state] is ReplicaState.EXITED:
                continue
            if key not in self._stopping:
                self._stopping.add(key)
                # A thread of its own, which waits as long as the engine does; the engine goes on without it.
                grace_s = max(0, math.ceil(left_s))
                threading.Thread(target=self._stop, args=(key, container.id, grace_s), daemon=True).start()
            elif left_s <= 0:
                self._pool.submit(self._tell, self._engine.kill, container.id)
            self._next_look = min(self._next_look, max(stop.kill_at, time.monotonic() + _PAUSE_S))

    def _stop(self, key: Key, container: str, grace_s: int) -> None:
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

        record = self._files.record(run_id)
        quota = record.order.log_quota_bytes if record else 0
        copier = LogCopier(self._engine, container, self._files.directory(run_id, task), is_over, quota)
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

    def _say(self, error: Exception) -> None:
        """The same trouble only once."""
        if str(error) != self._trouble:
            _log.warning("%s. Containers go on; trying again.", error)
        self._trouble = str(error)


def _labelled(role: str) -> str:
    return f"{containers.ROLE}={role}"


def _key(container: Container) -> Key:
    return container.labels.get(containers.RUN, ""), container.labels.get(containers.TASK, "")
