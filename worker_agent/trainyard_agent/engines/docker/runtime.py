"""The docker runtime: each replica is a container, each run has its own network.

Containers are found by their labels; what must outlive them is stored in files (`run_files`). A container with our
label that belongs to no run of this agent is removed.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from trainyard_agent.control.keeping import SHELL
from trainyard_agent.engines.docker import job_dir_mounts, secret_files
from trainyard_agent.engines.docker import spec as docker_spec
from trainyard_agent.engines.docker.client import Container, DockerClient, EngineDown, EngineError, EngineRefused
from trainyard_agent.engines.docker.disk_limit import DiskLimit
from trainyard_agent.engines.docker.network.networks import Networks
from trainyard_agent.engines.docker.probe import EngineProbe
from trainyard_agent.engines.docker.run_files import ContainerRunRecord, Key, RunFiles
from trainyard_agent.engines.docker.spec import ImageInfo, Owner
from trainyard_agent.engines.docker.streams.attachments import ContainerAttachments
from trainyard_agent.engines.docker.streams.log_copier import REMOVED, ContainerLogCopier
from trainyard_agent.engines.docker.users import home_archive
from trainyard_agent.host import disk, procfs
from trainyard_agent.host.accelerators import tpu_device_files
from trainyard_agent.host.subscribers import Subscribers
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.peers.reach import Reach
from trainyard_agent.runtimes import ports, replica_names
from trainyard_agent.runtimes.attaching.attachment import Attachment, NotAttachable
from trainyard_agent.runtimes.attaching.port_command import port_command
from trainyard_agent.runtimes.base import HOST, PROCESSES, STOPPED, Handle, Launch, LogSlice, StartFailed, metric_tag
from trainyard_agent.runtimes.exits import never_ran, stopped_exit
from trainyard_agent.runtimes.run_directories import METRIC_BYTES, is_run_id, secret_path, write_secret_files
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.attachments import Terminal
from trainyard_protocol.wire.logs import LogPosition
from trainyard_protocol.wire.sync import ExitReport, ReplicaReport, RunOrder

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_DIRECTORY = "containers"
_AT_ONCE = 16  # concurrent calls to the engine
_REFRESH_S = 1.0  # between two listings of containers, without a known change
_REPAIR_S = 10.0  # between two checks of the rules of networks
_REMOVE_TIMEOUT_S = 10.0  # for containers and networks of a run
_PAUSE_S = 0.05
_GONE = "Its container was removed, and not by Trainyard."
_OTHER_USER = "It ran as user {}, not as its image's (docs/how-to/containers.md, Choose the user)."
_SHUT_DOWN = "The container engine, or its machine, was shut down while it ran."

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(slots=True)
class _Snapshot:
    """The engine's last listing of our replicas, and the engine's process then (`host`)."""

    containers: dict[Key, Container] = field(default_factory=dict)
    host: str = ""


class DockerRuntime:
    """`probe`: while it reports a problem, the last known states are observed without asking the engine, which may
    hang."""

    traits = HOST

    def __init__(
        self,
        state_dir: Path,
        engine: DockerClient,
        owner: Owner,
        pids_limit: int = PROCESSES,
        probe: EngineProbe | None = None,
        networks: Networks | None = None,
        disk_bytes: int = 0,
        storage_roots: str = "",
        reach: Reach | None = None,
        host_network: bool = False,
    ) -> None:
        """`reach`, `host_network`: of parts of runs over several agents, the machine's address, and whether their
        containers have its network."""
        self._reach = reach or Reach()
        self._host_network = host_network
        self._probe = probe
        self._files = RunFiles(state_dir / _DIRECTORY)
        self._engine = engine
        self._owner = owner
        self._pids_limit = pids_limit
        self._storage_roots = storage_roots
        self._lock = threading.RLock()
        self._mounting = threading.Lock()
        """Held from the choice of what is mounted for a job-dir until it is mounted."""
        self._networks = networks or Networks(engine, owner)
        self._attachments = ContainerAttachments(engine, self._files)
        self._disk_limit = DiskLimit(engine, self._files, disk_bytes)
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="engine")
        self._snapshot = _Snapshot()
        self._next_refresh = 0.0
        self._next_repair = 0.0
        self._last_error = ""
        self._resumed: set[str] = set()
        self._stopping: set[Key] = set()
        self._copiers: dict[Key, ContainerLogCopier] = {}
        self._started_at: dict[Key, datetime | None] = {}
        self._subscribers = Subscribers()
        self._found: set[tuple[str, str, str, str, bool]] = set()
        """Programs that are in their images, which never change: their `image` is an id."""
        self._modes: dict[tuple[str, str], int | None] = {}

    def close(self) -> None:
        """Release threads. Containers keep running; another runtime object recovers them."""
        for copier in list(self._copiers.values()):
            copier.close()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def recover(self) -> list[Handle]:
        self._files.sweep()
        try:
            for record in self._files.records():
                if not record.launched:
                    self.remove(record.run_id)
            self._refresh(now=True)
            mine = self._engine.networks(f"{docker_spec.AGENT}={self._owner.agent_id}")
            self._remove_orphans({labels.get(docker_spec.RUN, "") for labels in mine.values()})
            self._networks.repair()
            self._attachments.end_left(self._container_of, self._pool)
        except (EngineError, OSError) as error:
            if self._files.records():  # else no container of ours can be missed
                self._log_error(error)  # every observation tries again
        return [record for record in self._files.records() if record.launched]

    def _container_of(self, run_id: str, task: str) -> str | None:
        container = self._snapshot.containers.get((run_id, task))
        return container.id if container is not None and container.state == "running" else None

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        return self._subscribers.add(changed)

    def place(self, order: RunOrder) -> Handle:
        existing = self._files.record(order.run_id)
        if existing is not None and existing.order.spread != order.spread and not existing.launched:
            existing = existing.model_copy(update={"order": order})  # the addresses of the other parts are known now
            self._files.save(existing)
        if existing is not None:
            return existing
        try:
            record = ContainerRunRecord(
                run_id=order.run_id,
                addresses=replica_names.addresses(order) if order.spread is None else self._host_addresses(order),
                grace_s=order.grace_s,
                metric_tag=metric_tag(order),
                interface=self._reach.interface if order.spread is not None and self._host_network else "",
                order=order,
            )
            self._files.create(record)
        except (OSError, ValueError, ports.NoFreePort) as error:
            words = disk.in_words(error) if isinstance(error, OSError) else str(error)
            message = f"There is no room for it: {words}."
            raise StartFailed(order.replicas[0].task, message, Reason.HOST_FAILED) from error
        return record

    def _host_addresses(self, order: RunOrder) -> dict[str, str]:
        """An address of this machine for each replica of a part. Raises NoFreePort."""
        spreads = [record for record in self._files.records() if record.order.spread is not None]
        taken = [address for record in spreads for address in record.addresses.values()]
        tasks = [replica.task for replica in order.replicas]
        return ports.addresses(self._reach.address, tasks, taken, self._reach.ports)

    def start(self, run_id: str, launches: Sequence[Launch]) -> Handle:
        record = self._files.record(run_id)
        if record is None:
            raise StartFailed(launches[0].task, "Its run was not placed.")
        if record.launched:
            return record
        try:
            if not launches[0].job_dir_source:
                return self._launch(record, launches)
            with self._mounting:
                mounted = self._mounted(run_id)
                return self._launch(record, [job_dir_mounts.through(launch, mounted) for launch in launches])
        except (StartFailed, EngineError, OSError, ValueError) as error:
            self._undo(run_id)
            if isinstance(error, StartFailed):
                raise
            words = disk.in_words(error) if isinstance(error, OSError) else str(error)
            raise StartFailed(launches[0].task, f"{words}.", Reason.HOST_FAILED) from error

    def observe(self, run_id: str) -> tuple[ReplicaReport, ...]:
        record = self._files.record(run_id)
        if record is None:
            return ()
        try:
            self._refresh()
        except (EngineError, OSError) as error:
            self._log_error(error)  # the last known states are reported
        return tuple(self._observe(record, task) for task in record.addresses)

    def read_log(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        return self._files.read_log(run_id, task, start, max_lines, max_bytes)

    def resume_log(self, run_id: str, task: str, position: LogPosition) -> None:
        pass

    def read_metrics(self, run_id: str, task: str) -> bytes:
        record = self._files.record(run_id)
        if record is None or task not in record.addresses or not record.launched:
            return b""
        container = docker_spec.container_name(record.order, task)
        return self._engine.read_file(container, docker_spec.METRICS, METRIC_BYTES)

    def processes(self, run_id: str, task: str) -> tuple[int, ...]:
        record = self._files.record(run_id)
        if record is None or task not in record.addresses or not record.launched:
            return ()
        try:
            info = self._engine.inspect(docker_spec.container_name(record.order, task))
        except EngineError as error:
            self._log_error(error)
            return ()
        first = int(info["State"]["Pid"]) if info is not None else 0
        # The engine may be in another pid namespace: then the pid is of another process.
        if info is None or not first or not procfs.is_in_container(first, str(info["Id"])):
            return ()
        return procfs.tree(first)

    def usage(self, run_id: str, task: str) -> ReplicaUse | None:
        container = self._snapshot.containers.get((run_id, task))
        if container is None or docker_spec.STATES[container.state] is not ReplicaState.RUNNING:
            return None
        try:
            stats = self._engine.stats(container.id)
        except EngineError as error:
            self._log_error(error)
            return None
        return docker_spec.usage_of(stats) if stats is not None else None

    def execute(self, run_id: str, task: str, command: Sequence[str], terminal: Terminal | None) -> Attachment:
        container = self._running(run_id, task)
        return self._attachments.start((run_id, task), container, command, terminal, leaves=True)

    def connect(self, run_id: str, task: str, port: int) -> Attachment:
        container = self._running(run_id, task)
        return self._attachments.start((run_id, task), container, port_command(port), None, leaves=False)

    def _running(self, run_id: str, task: str) -> str:
        """The container of a replica that runs. Raises NotAttachable."""
        record = self._files.record(run_id)
        info = None
        if record is not None and task in record.addresses and record.launched:
            info = self._engine.inspect(docker_spec.container_name(record.order, task))
        if info is None or not info["State"]["Running"]:
            raise NotAttachable(f"{task} does not run.")
        return str(info["Id"])

    def stop(self, run_id: str, grace_s: float, reason: Reason = STOPPED) -> None:
        record = self._files.record(run_id)
        if record is None or not record.launched:
            return
        try:
            self._refresh(now=True)
        except (EngineError, OSError) as error:
            self._log_error(error)  # it is stopped as soon as the engine answers again
        alive = [r.task for r in (self._observe(record, task) for task in record.addresses) if r.exit is None]
        if not alive:
            return
        # Saved before the signal is sent: every exit after it counts as stopped.
        self._files.save_stop(run_id, alive, grace_s, reason)
        with self._lock:
            self._enforce(record)

    def remove(self, run_id: str) -> None:
        """Raises EngineError if the engine cannot do it now; the run stays known until it can."""
        if self._files.record(run_id) is None:
            if is_run_id(run_id):
                self._files.discard(run_id)  # what somebody has left of it
            return
        self._clear(run_id)
        self._forget(run_id)

    def has_ended(self, run_id: str) -> bool:
        """Whether every container of the run has ended and its logs are complete. Unknown run: True."""
        reports = self.observe(run_id)
        return all(r.exit is not None and self._files.log_is_closed(run_id, r.task) for r in reports)

    # Starting.

    def _launch(self, record: ContainerRunRecord, launches: Sequence[Launch]) -> Handle:
        """Create all containers, then start them. If the agent dies in between, the next one starts the rest."""
        order = record.order
        self._clear(record.run_id)  # of an attempt whose answer was lost
        on_host = order.spread is not None and self._host_network
        addresses = {} if on_host else self._networks.create(order)
        images: dict[str, ImageInfo] = {}
        for name, task in {launch.image: launch.task for launch in reversed(launches)}.items():
            inspection = self._engine.image(name)
            if inspection is None:
                raise StartFailed(task, f"Its image {name} was removed from the machine.", Reason.HOST_FAILED)
            images[name] = ImageInfo.of(inspection)
        gateway = self._engine.gateway()
        write_secret_files(self._files.secrets(record.run_id), launches[0].secret_files, secret_files.MODE)
        published = {} if order.spread is None else record.addresses
        network = docker_spec.RunNetwork(addresses, gateway, published, on_host)
        ids = self._each(launches, lambda launch: self._create(order, launch, images[launch.image], network))
        launched = record.model_copy(
            update={
                "launched": True,
                "host": self._host(),
                "memory": {launch.task: launch.memory_bytes for launch in launches},
                "job_dir": launches[0].job_dir_source,
                "users": {launch.task: launch.user.ids for launch in launches if launch.user},
            }
        )
        with self._lock:
            self._resumed.add(record.run_id)  # `_resume` must not start it too
        self._files.save(launched)
        self._each(list(zip(launches, ids, strict=True)), lambda pair: self._start(launched, pair[0].task, pair[1]))
        with self._lock:
            self._next_refresh = 0.0
            for launch, container in zip(launches, ids, strict=True):
                self._follow(record.run_id, launch.task, container)
        return launched

    def _create(self, order: RunOrder, launch: Launch, image: ImageInfo, network: docker_spec.RunNetwork) -> str:
        program = image.program(launch)
        if not program:
            raise StartFailed(launch.task, "Its image names no program, and the job gives none.")
        secrets = self._files.secrets(order.run_id)
        sources = {file.path: str(secret_path(secrets, file.name, file.path)) for file in launch.secret_files}
        spec = docker_spec.container_spec(
            self._owner,
            order,
            launch,
            image,
            network=network,
            dns=self._networks.dns,
            pids_limit=self._pids_limit,
            secret_sources=sources,
            tpus=tpu_device_files() if launch.uses_tpus else (),
            storage_roots=self._storage_roots,
        )
        try:
            container = self._engine.create(docker_spec.container_name(order, launch.task), spec)
            if launch.user is not None:
                mode = partial(self._mode, image, container)
                mounts = [launch.job_dir, *(mount.path for mount in launch.mounts)]
                home = home_archive(mode, launch.user, image.directory, mounts)
                self._engine.extract(container, home)
            path = launch.environment.get("PATH", image.path)
            place = (launch.image, program, path, image.directory, bool(launch.packages))
            message = ""
            if place not in self._found:
                message = self._engine.program_error(container, program, path, image.directory)
            if launch.keep is not None and not message:
                message = self._engine.program_error(container, SHELL, path, image.directory)
                if message:
                    message = f"{message}, and keepOnFailure needs one: remove it, or add a shell to the image"
        except EngineError as error:
            raise StartFailed(launch.task, f"{error}.", Reason.HOST_FAILED) from error
        if message:
            raise StartFailed(launch.task, f"{message[0].upper()}{message[1:]}.")
        self._found.add(place)
        return container

    def _mode(self, image: ImageInfo, container: str, path: str) -> int | None:
        """The permissions of a directory of the image, which is looked into once, in a created container."""
        if (image.id, path) not in self._modes:
            self._modes[image.id, path] = self._engine.mode(container, path)
        return self._modes[image.id, path]

    def _start(self, record: ContainerRunRecord, task: str, container: str) -> None:
        job_dir_mounts.require_in_place(task, record.job_dir, self._mounted(record.run_id))
        try:
            self._engine.start(container)
        except EngineRefused as refused:
            raise StartFailed(task, *docker_spec.refused_start(refused.status, refused.message)) from refused
        except EngineDown as down:
            raise StartFailed(task, f"{down}.", Reason.HOST_FAILED) from down

    def _mounted(self, besides: str) -> list[str]:
        """The job-dirs that containers of other runs may have mounted."""
        return [run.job_dir for run in self._files.records() if run.launched and run.run_id != besides]

    def _undo(self, run_id: str) -> None:
        """Remove the run; what cannot be removed now is removed as an orphan once the engine answers."""
        try:
            self._clear(run_id)
        except EngineError as error:
            _log.warning("run %s is not completely removed yet: %s", run_id, error)
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
        """Remove the run's containers and network. Raises EngineError."""
        labels = (f"{docker_spec.AGENT}={self._owner.agent_id}", f"{docker_spec.RUN}={run_id}")
        refusals: list[EngineRefused] = []

        def is_cleared() -> bool:
            refusals.clear()
            try:
                left = [c.id for c in self._engine.containers(*labels, _labelled(docker_spec.REPLICA))]
                self._each(left, self._engine.remove)
                networks = self._engine.networks(*labels)
                if not left:  # the engine may have refused to remove the network
                    self._each(list(networks), self._engine.release_network)
                self._each(networks.items(), lambda network: self._networks.remove(*network))
            except EngineRefused as refused:  # a network or a container that is being removed
                _log.debug("run %s: %s; trying again", run_id, refused)
                refusals.append(refused)
                return False
            return not left and not networks

        if not wait_until(is_cleared, deadline_in(_REMOVE_TIMEOUT_S), _PAUSE_S):
            late = EngineRefused(500, f"the containers of run {run_id} are not removed in time")
            raise refusals[0] if refusals else late

    def _resume(self, record: ContainerRunRecord) -> None:
        """Resume a run of a former agent: start what it has not started, and copy the logs further."""
        self._resumed.add(record.run_id)
        for task in record.addresses:
            key = (record.run_id, task)
            container = self._snapshot.containers.get(key)
            if container is None or self._files.report(*key) is not None:
                continue
            if container.state == "created":
                try:
                    self._start(record, task, container.id)
                except StartFailed as failure:
                    how = never_ran(failure.reason, failure.message, datetime.now(UTC))
                    self._finish(record, task, None, how)
                self._next_refresh = 0.0
        for task in record.addresses:
            key = (record.run_id, task)
            container = self._snapshot.containers.get(key)
            if self._files.log_is_closed(*key):
                continue
            if container is not None:
                self._follow(*key, container.id)
            elif self._files.report(*key) is not None:  # it was removed with what is left of its log
                self._files.close_log(*key, REMOVED)

    # Watching.

    def _refresh(self, now: bool = False) -> None:
        """List our containers, at most every _REFRESH_S. Raises EngineError."""
        with self._lock:
            if not now and time.monotonic() < self._next_refresh:
                return
            self._next_refresh = time.monotonic() + _REFRESH_S
            if self._probe is not None and self._probe.state.problem:
                raise EngineDown(self._probe.state.problem)
            mine = (f"{docker_spec.AGENT}={self._owner.agent_id}", _labelled(docker_spec.REPLICA))
            # The engine's process first: containers listed by a new one may have ended with the old one.
            host = self._host()
            listed = (self._probe.engine if self._probe is not None else self._engine).containers(*mine)
            if self._last_error:
                _log.info("the container engine answers again")
                self._last_error = ""
            containers = {
                (item.labels.get(docker_spec.RUN, ""), item.labels.get(docker_spec.TASK, "")): item for item in listed
            }
            self._snapshot = _Snapshot(containers, host)
            self._remove_orphans({run_id for run_id, _ in containers})
            for record in self._files.records():
                if record.launched:
                    self._record_host(record)
                    if record.run_id not in self._resumed:
                        self._resume(record)
                    self._enforce(record)
            if time.monotonic() >= self._next_repair:
                self._next_repair = time.monotonic() + _REPAIR_S
                self._networks.repair()
            self._disk_limit.check({key: item.id for key, item in containers.items() if item.state == "running"})

    def _remove_orphans(self, listed: set[str]) -> None:
        """Remove the containers and networks with our label whose run was removed without the engine, or by hand."""
        for run_id in listed - {record.run_id for record in self._files.records()}:
            _log.warning("removing orphaned containers of run %s", run_id)
            try:
                self._clear(run_id)
            except EngineError as error:
                _log.warning("run %s: %s; trying again", run_id, error)

    def _record_host(self, record: ContainerRunRecord) -> None:
        """Record the engine's process under which the run is alive."""
        if record.host == self._snapshot.host:
            return
        containers = (self._snapshot.containers.get((record.run_id, task)) for task in record.addresses)
        if any(container is not None and container.state == "running" for container in containers):
            self._files.save(record.model_copy(update={"host": self._snapshot.host}))

    def _observe(self, record: ContainerRunRecord, task: str) -> ReplicaReport:
        exited = self._files.report(record.run_id, task)
        if exited is not None:
            return exited
        address = record.addresses[task]
        if not record.launched:
            return ReplicaReport(task=task, state=ReplicaState.PENDING, address=address)
        container = self._snapshot.containers.get((record.run_id, task))
        state = docker_spec.STATES[container.state] if container else ReplicaState.RUNNING
        try:
            if container is None or state is ReplicaState.EXITED:
                info = self._engine.inspect(docker_spec.container_name(record.order, task))
                state = docker_spec.STATES[info["State"]["Status"]] if info else ReplicaState.EXITED
                if state is ReplicaState.EXITED:
                    return self._ended(record, task, info)
        except (EngineError, OSError) as error:  # unknown, or it cannot be recorded now
            self._log_error(error)
            state = ReplicaState.RUNNING
        return ReplicaReport(task=task, state=state, address=address, started_at=self._started(record, task, container))

    def _ended(self, record: ContainerRunRecord, task: str, info: dict[str, Any] | None) -> ReplicaReport:
        if info is None:
            now = datetime.now(UTC)
            gone = ExitReport(code=None, reason=Reason.VANISHED, message=_GONE, finished_at=now)
            return self._finish(record, task, None, gone)
        if (record.run_id, task) not in self._copiers:
            self._follow(record.run_id, task, info["Id"])
        started = docker_spec.parse_time(info["State"]["StartedAt"])
        return self._finish(record, task, started, self._exit(record, task, info["State"]))

    def _started(self, record: ContainerRunRecord, task: str, container: Container | None) -> datetime | None:
        key = (record.run_id, task)
        if container is None or docker_spec.STATES[container.state] is ReplicaState.STARTING:
            return None
        if key not in self._started_at:
            try:
                info = self._engine.inspect(container.id)
            except EngineError as error:
                self._log_error(error)
                return None
            self._started_at[key] = docker_spec.parse_time(info["State"]["StartedAt"]) if info else None
        return self._started_at[key]

    def _exit(self, record: ContainerRunRecord, task: str, state: Mapping[str, Any]) -> ExitReport:
        how = docker_spec.exit_of(state, record.memory.get(task, 0))
        stop = self._files.stop(record.run_id)
        if stop is not None and task in stop.tasks:
            return stopped_exit(how.code, stop.reason, how.finished_at)
        killed = self._files.kill(record.run_id, task)
        if killed is not None and how.code != 0:  # else it completed before the signal reached it
            return how.model_copy(update={"reason": killed.reason, "message": killed.message})
        if record.host != self._snapshot.host:  # containers survive a restarted engine with live-restore
            same_boot = record.host.partition(" ")[0] == self._snapshot.host.partition(" ")[0]
            if not same_boot or not self._engine.about().live_restore:
                return how.model_copy(update={"reason": Reason.HOST_SHUTDOWN, "message": _SHUT_DOWN})
        if how.reason is Reason.PROGRAM_ERROR and (user := record.users.get(task)):
            return how.model_copy(update={"message": f"{how.message} {_OTHER_USER.format(user)}"})
        return how

    def _finish(
        self, record: ContainerRunRecord, task: str, started_at: datetime | None, how: ExitReport
    ) -> ReplicaReport:
        """Save an exit before it is reported: it never changes."""
        # The engine's two clocks differ slightly.
        if started_at is not None and how.finished_at < started_at:
            how = how.model_copy(update={"finished_at": started_at})
        report = ReplicaReport(
            task=task, state=ReplicaState.EXITED, address=record.addresses[task], started_at=started_at, exit=how
        )
        if (record.run_id, task) not in self._copiers:  # there is nothing to copy
            is_gone = how.reason is Reason.VANISHED  # while no agent ran
            self._files.close_log(record.run_id, task, REMOVED if is_gone else {})
        self._files.save_exit(record.run_id, report)
        return report

    # Stopping.

    def _enforce(self, record: ContainerRunRecord) -> None:
        """Stop the run's containers: SIGTERM once, SIGKILL after the grace."""
        stop = self._files.stop(record.run_id)
        if stop is None:
            return
        left_s = stop.kill_at - time.monotonic()
        for task in stop.tasks:
            key = (record.run_id, task)
            container = self._snapshot.containers.get(key)
            if container is None or docker_spec.STATES[container.state] is ReplicaState.EXITED:
                continue
            if key not in self._stopping:
                self._stopping.add(key)
                # In a thread that waits as long as the engine; the engine goes on without it.
                grace_s = max(0, math.ceil(left_s))
                threading.Thread(target=self._stop, args=(key, container.id, grace_s), daemon=True).start()
            elif left_s <= 0:
                self._pool.submit(self._try_call, self._engine.kill, container.id)
            self._next_refresh = min(self._next_refresh, max(stop.kill_at, time.monotonic() + _PAUSE_S))

    def _stop(self, key: Key, container: str, grace_s: int) -> None:
        if not self._try_call(self._engine.stop, container, grace_s):
            self._stopping.discard(key)  # sent again at the next refresh
        self._next_refresh = 0.0

    def _try_call(self, call: Callable[..., None], *arguments: object) -> bool:
        try:
            call(*arguments)
        except EngineError as error:
            self._log_error(error)
            return False
        return True

    # Logs.

    def _follow(self, run_id: str, task: str, container: str) -> None:
        def has_ended() -> bool:
            info = self._engine.inspect(container)
            self._next_refresh = 0.0
            self._subscribers.call()
            return info is None or docker_spec.STATES[info["State"]["Status"]] is ReplicaState.EXITED

        record = self._files.record(run_id)
        quota = record.order.log_quota_bytes if record else 0

        def secrets() -> list[str]:
            if record is None:
                return []
            token = [record.order.run_token] if record.order.run_token else []
            info = self._engine.inspect(container) if record.order.training_input.secrets else None
            if info is None:
                return token
            directory = self._files.secrets(run_id)
            return [*secret_files.values(directory, record.order, info["Config"]), *token]

        directory = self._files.directory(run_id, task)
        copier = ContainerLogCopier(self._engine, container, directory, has_ended, quota, secrets)
        self._copiers[(run_id, task)] = copier
        copier.start()

    # Helpers.

    def _each(self, items: Iterable[_T], call: Callable[[_T], _R]) -> list[_R]:
        """Call concurrently and wait for all; then raise the first error, if there was one."""
        futures = [self._pool.submit(call, item) for item in items]
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _host(self) -> str:
        return f"{_BOOT_ID.read_text(encoding='ascii').strip()} {self._engine.process()}"

    def _log_error(self, error: Exception) -> None:
        """Log an error of the engine, repeated ones only once."""
        if str(error) != self._last_error:
            _log.warning("%s. Containers keep running; trying again.", error)
        self._last_error = str(error)


def _labelled(role: str) -> str:
    return f"{docker_spec.ROLE}={role}"
