"""Translation of replicas into container specifications, and of container states into replica states. Pure.

Names and fields are those of the Docker Engine API, version 1.41.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Network
from itertools import islice
from types import MappingProxyType
from typing import Any

from trainyard_agent.control.keeping import kept
from trainyard_agent.engines.docker.network.network_policy import NetworkPolicy, bridge_name
from trainyard_agent.runtimes.base import METRIC_FILE, Launch, Mount
from trainyard_agent.runtimes.exits import message_of_code
from trainyard_agent.runtimes.installing import PACKAGES, SOURCE
from trainyard_agent.runtimes.replica_names import CAPABILITIES, host_name
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.job.cluster import INTEROP_THREADS, Task
from trainyard_protocol.job.mounts import CACHE
from trainyard_protocol.states import Reason, ReplicaState, reason_of_exit
from trainyard_protocol.wire.sync import ExitReport, RunOrder

METRICS = "/tmp/hypertune/output.metrics"  # noqa: S108 - inside the container
"""The metric file of a trial, where cloudml-hypertune writes it by default."""

HOME = "/home/trainyard"
"""Home directory, in its container, of a user that is not the image's own."""

STATES: Mapping[str, ReplicaState] = {
    "created": ReplicaState.STARTING,
    "running": ReplicaState.RUNNING,
    "paused": ReplicaState.RUNNING,
    "restarting": ReplicaState.RUNNING,
    "removing": ReplicaState.RUNNING,  # its processes may still live
    "exited": ReplicaState.EXITED,
    "dead": ReplicaState.EXITED,
}
"""Replica states by the engine's container states."""

STORAGE_ROOTS = "/opt/trainyard/storage-roots.pem"
"""Path of the authorities for TensorFlow's own gs:// in the containers that have its variables."""

HOST_NETWORK = "host"
"""The engine's name of the network of the host."""

HOST = "host.docker.internal"
"""The host's name inside its containers."""

AGENT, ROLE, RUN = "trainyard.agent", "trainyard.role", "trainyard.run"
SERVER, JOB, ATTEMPT, TASK = "trainyard.server", "trainyard.job", "trainyard.attempt", "trainyard.task"
STATE_DIR, HOST_NAME = "trainyard.state-dir", "trainyard.host"
POLICY, BRIDGE, PEERS = "trainyard.network-policy", "trainyard.bridge", "trainyard.peers"
"""Labels. Only containers and networks with our AGENT label are ever touched."""

REPLICA, STAGING, NETWORK, STAGING_NETWORK = "replica", "staging", "network", "staging-network"
"""Values of ROLE."""

_LOG = {"Type": "local", "Config": {"max-size": "1000t", "max-file": "1", "compress": "false"}}
# Never rotated, whatever the engine's default: rotation would lose unread output. It is removed with the container.
# This driver keeps bytes unchanged; json-file splits characters at 16 KiB.
_MIN_LOG = 1 << 20

_EXECUTING = "unable to start container process: "
_NEVER = "0001-01-01T00:00:00Z"
_MIN_MEMORY = 6 << 20  # the engine's minimum


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of containers: the agent, and its server for people to see. The doctor detects a removed agent by its
    state directory and `machine_id.identity` (`host`)."""

    agent_id: str
    server: str = ""
    state_dir: str = ""
    host: str = ""

    def labels(self, role: str, order: RunOrder) -> dict[str, str]:
        return {
            AGENT: self.agent_id,
            ROLE: role,
            RUN: order.run_id,
            SERVER: self.server,
            STATE_DIR: self.state_dir,
            HOST_NAME: self.host,
            JOB: f"{order.project}/{order.job_id}",
            ATTEMPT: str(order.number),
        }


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """The parts of an image that a start needs. `id` is the engine's immutable id."""

    id: str
    environment: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    directory: str = "/"
    user: str = ""

    @classmethod
    def of(cls, inspection: Mapping[str, Any]) -> "ImageInfo":
        config = inspection.get("Config") or {}
        return cls(
            id=inspection["Id"],
            environment=tuple(config.get("Env") or ()),
            entrypoint=tuple(config.get("Entrypoint") or ()),
            command=tuple(config.get("Cmd") or ()),
            directory=config.get("WorkingDir") or "/",
            user=config.get("User") or "",
        )

    @property
    def is_roots(self) -> bool:
        """Whether the image's own user is root, by name or number."""
        name = self.user.partition(":")[0]
        try:
            return int(name or 0) == 0
        except ValueError:
            return name == "root"

    def program(self, launch: Launch) -> str:
        """The program that a container executes; "" if there is none."""
        return next(iter(self.words(launch)), "")

    def words(self, launch: Launch) -> tuple[str, ...]:
        """The program with its arguments."""
        if launch.entrypoint:  # the image's own arguments are for its own entry point alone
            return (*launch.entrypoint, *launch.command)
        return (*self.entrypoint, *(launch.command or self.command))

    @property
    def variables(self) -> dict[str, str]:
        return dict(pair.partition("=")[::2] for pair in self.environment)

    @property
    def path(self) -> str:
        """PATH inside the image, or the engine's default."""
        return self.variables.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def network_name(order: RunOrder) -> str:
    return f"trainyard-{order.job_id[:40]}-{order.run_id[:12]}"


def staging_name(order: RunOrder) -> str:
    """Name of the container that installs the run's packages, and of its network."""
    return f"{network_name(order)}-staging"


def container_name(order: RunOrder, task: str) -> str:
    """The name in `docker ps`: unique by the run's id, readable by the job's."""
    return f"{network_name(order)}-{task}"


def ip_addresses(order: RunOrder, subnet: str) -> dict[str, str]:
    """An address of the run's network for each task, after the gateway's. Raises ValueError for too small a network."""
    hosts = list(islice(IPv4Network(subnet).hosts(), 1, len(order.replicas) + 1))
    if len(hosts) < len(order.replicas):
        raise ValueError(f"the network {subnet} has no room for {len(order.replicas)} replicas")
    return {replica.task: str(host) for replica, host in zip(order.replicas, hosts, strict=True)}


@dataclass(frozen=True, slots=True)
class RunNetwork:
    """The network of a run's containers.

    `addresses` are the `ip_addresses` of its replicas, given as extra hosts: the engine's DNS knows a name only once
    its container has started. `gateway` is the host's address. `published` are the addresses (`host:port`) of a part of
    a run over several agents by task, at which the host passes connections on. `is_hosts`: it is the host's own, and
    the address is the containers' host name, where collectives of JAX on CPUs (Gloo) listen.
    """

    addresses: Mapping[str, str]
    gateway: str
    published: Mapping[str, str] = field(default_factory=dict)
    is_hosts: bool = False


def digests(inspections: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """The images of a run by their names, as REPOSITORY@DIGEST where a registry has them, else by the engine's id. The
    image of a runtime version, whose name here is "", has its tag as its name."""
    found: dict[str, str] = {}
    for name, inspection in inspections.items():
        known_names = [*(inspection.get("RepoTags") or ()), inspection["Id"]]
        shown = name or known_names[0]
        repository, slash, last = shown.rpartition("/")
        repository += slash + last.partition("@")[0].partition(":")[0]
        references: list[str] = list(inspection.get("RepoDigests") or ())
        same = [reference for reference in references if reference.partition("@")[0] == repository]
        found[shown] = next(iter((*same, *references)), inspection["Id"])
    return found


def container_spec(
    owner: Owner,
    order: RunOrder,
    launch: Launch,
    image: ImageInfo,
    *,
    network: RunNetwork,
    pids_limit: int,
    dns: Sequence[str] = (),
    secret_sources: Mapping[str, str] = MappingProxyType({}),
    tpus: Sequence[str] = (),
    storage_roots: str = "",
) -> dict[str, Any]:
    """The body of `POST /containers/create` for one replica. `tpus` are the device files of the machine's TPU.

    `secret_sources` are the host's files of its secrets, by their paths in the container, and `storage_roots` that of
    STORAGE_ROOTS.
    """
    task = Task.parse(launch.task)
    addresses, published = network.addresses, network.published.get(launch.task, "")
    host = published.rpartition(":")[0] if network.is_hosts else host_name(order.run_id, task)
    peers = {host_name(order.run_id, Task.parse(peer)): ip for peer, ip in addresses.items() if peer != launch.task}
    endpoint: dict[str, Any] = {"Aliases": [host]}
    if launch.task in addresses:
        endpoint["IPAMConfig"] = {"IPv4Address": addresses[launch.task]}
    name = HOST_NETWORK if network.is_hosts else network_name(order)
    ports: dict[str, list[dict[str, str]]] = {}
    if published and not network.is_hosts:  # at the same port of the machine's address
        address, _, port = published.rpartition(":")
        ports[f"{port}/tcp"] = [{"HostIp": address, "HostPort": port}]
    return {
        "Hostname": host,
        "Image": image.id,
        **_program(launch, image),
        "Env": [f"{name}={value}" for name, value in _environment(order, launch, image).items()],
        "Labels": {**owner.labels(REPLICA, order), TASK: launch.task},
        **({"User": launch.user.ids} if launch.user else {}),
        **({"WorkingDir": HOME} if launch.user and not order.training_input.image_uri else {}),
        "StopSignal": "SIGTERM",
        "Healthcheck": {"Test": ["NONE"]},  # disables the image's own, which nothing reads
        "HostConfig": {
            "NetworkMode": name,
            **({"PortBindings": ports} if ports else {}),
            "Dns": list(dns),
            "ExtraHosts": [*_host(network.gateway), *(f"{peer}:{ip}" for peer, ip in peers.items())],
            "LogConfig": _log_config(launch.log_quota_bytes),
            "RestartPolicy": {"Name": "no"},
            "Init": True,  # a program as process 1 would ignore SIGTERM and leave zombies
            **_limits(launch, pids_limit),
            **_confinement(as_root=launch.user is None and image.is_roots),
            "Mounts": [
                *_mounts(launch, storage_roots),
                *(_mount(mount.source, mount.path, read_only=mount.read_only) for mount in _site_mounts(launch)),
                *(_mount(source, path, read_only=True) for path, source in secret_sources.items()),
            ],
            **({"GroupAdd": list(map(str, launch.groups))} if launch.groups and launch.user else {}),
            # GPUs by the driver's ids: by count the engine would assign the same device twice.
            "DeviceRequests": [{"DeviceIDs": list(launch.gpus), "Capabilities": [["gpu"]]}] if launch.gpus else [],
            "Devices": [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in tpus],
        },
        **({"ExposedPorts": {port: {} for port in ports}} if ports else {}),
        **({} if network.is_hosts else {"NetworkingConfig": {"EndpointsConfig": {name: endpoint}}}),
    }


def _program(launch: Launch, image: ImageInfo) -> dict[str, list[str] | None]:
    if launch.keep is not None:
        words = kept(image.words(launch), launch.keep, launch.task, alone=True)
        return {"Entrypoint": list(words[:1]), "Cmd": list(words[1:])}
    return {"Entrypoint": list(launch.entrypoint) or None, "Cmd": list(launch.command) or None}


def network_spec(
    owner: Owner, order: RunOrder, subnet: str = "", policy: NetworkPolicy = "all", role: str = NETWORK
) -> dict[str, Any]:
    """The body of `POST /networks/create`: a bridge for this run alone. Without a `subnet` the engine selects a free
    one; it accepts fixed addresses only on an explicit subnet."""
    name = network_name(order) if role == NETWORK else staging_name(order)
    bridge = policy_bridge(owner, name, policy)
    # The addresses of a gang over several agents, which its containers reach under every policy.
    peers = {PEERS: ",".join(sorted(order.spread.addresses.values()))} if order.spread is not None else {}
    return {
        "Name": name,
        "Driver": "bridge",
        "CheckDuplicate": True,
        "Labels": {**owner.labels(role, order), **bridge["Labels"], **peers},
        "Options": bridge["Options"],
        **({"IPAM": {"Config": [{"Subnet": subnet}]}} if subnet else {}),
    }


def policy_bridge(owner: Owner, network: str, policy: NetworkPolicy) -> dict[str, dict[str, str]]:
    """The labels and options of a network: a policy other than all has rules for a bridge of a known name."""
    if policy == "all":
        return {"Labels": {}, "Options": {}}
    name = bridge_name(owner.agent_id, network)
    return {"Labels": {POLICY: policy, BRIDGE: name}, "Options": {"com.docker.network.bridge.name": name}}


def staging_spec(
    owner: Owner,
    order: RunOrder,
    image: ImageInfo,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    gateway: str,
    directory: str,
    source: str,
    user: str,
    network: str,
    memory_bytes: int,
    cpus: float,
) -> dict[str, Any]:
    """The container that installs a run's Python environment.

    The host's `directory` is mounted at PACKAGES, and `source`, with the fetched packages, read-only beside it. It runs
    as `user`, is confined like a replica, and is on `network`, or without one on the engine's default bridge, which no
    replica uses.
    """
    return {
        "Image": image.id,
        "Entrypoint": [],
        "Cmd": list(command),
        "Env": [f"{name}={value}" for name, value in environment.items()],
        "Labels": owner.labels(STAGING, order),
        "User": user,
        "WorkingDir": "/tmp",  # noqa: S108 - inside the container
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": network or "default",
            "ExtraHosts": _host(gateway),
            "LogConfig": _LOG,
            "RestartPolicy": {"Name": "no"},
            "Init": True,
            "PidsLimit": 1024,
            "Memory": memory_bytes,
            "MemorySwap": memory_bytes,
            "NanoCpus": int(cpus * 1e9),
            **_confinement(as_root=False),
            "Mounts": [_mount(directory, PACKAGES), _mount(source, SOURCE, read_only=True)],
        },
    }


def exit_of(state: Mapping[str, Any], memory_bytes: int) -> ExitReport:
    """The exit of a container that was not stopped, from the State of its inspection and its memory limit."""
    finished_at = parse_time(state["FinishedAt"]) or datetime.now(UTC)
    code, error = int(state["ExitCode"]), str(state.get("Error") or "")
    if parse_time(state["StartedAt"]) is None:
        return ExitReport(code=None, reason=Reason.START_FAILED, message=start_error(error), finished_at=finished_at)
    if state.get("OOMKilled") and code:
        message = f"Its memory limit is {memory_bytes / 1e9:.3g} GB." if memory_bytes else ""
        return ExitReport(code=code, reason=Reason.OUT_OF_MEMORY, message=message, finished_at=finished_at)
    return ExitReport(code=code, reason=reason_of_exit(code), message=message_of_code(code), finished_at=finished_at)


def usage_of(stats: Mapping[str, Any]) -> ReplicaUse | None:
    """A container's usage from the engine's statistics; None if there are none, because it has ended. Its memory is
    without the inactive page cache, which the kernel can reclaim."""
    cpu_ns = int(((stats.get("cpu_stats") or {}).get("cpu_usage") or {}).get("total_usage") or 0)
    memory = stats.get("memory_stats") or {}
    if not cpu_ns:
        return None
    parts = memory.get("stats") or {}
    reclaimable = int(parts.get("total_inactive_file", parts.get("inactive_file", 0)))  # cgroups 1 and 2
    return ReplicaUse(cpu_ns / 1e9, max(0, int(memory.get("usage") or 0) - reclaimable))


def refused_start(status: int, message: str) -> tuple[str, Reason]:
    """The message and reason for a refused start."""
    if status < 500 and _EXECUTING in message:
        return start_error(message), Reason.START_FAILED
    return f"{message.strip().rstrip('.')}.", Reason.HOST_FAILED


def start_error(message: str) -> str:
    """The engine's error for a program that it could not execute, without its prefixes."""
    cause = message.rpartition(_EXECUTING)[2].removesuffix(": unknown")
    return f"{cause.strip().rstrip('.') or 'the engine gave no reason'}."


def parse_time(text: str) -> datetime | None:
    """Parse the engine's time in nanoseconds; None for the one that means never."""
    if not text or text == _NEVER:
        return None
    return datetime.fromisoformat(text).astimezone(UTC)


def _log_config(quota: int) -> dict[str, Any]:
    """Options of the log. With a quota the engine keeps two files of its size, and drops the first when both are
    full. A line is not larger there than in our log, so ours is cut by then."""
    if not quota:
        return _LOG
    return {**_LOG, "Config": {"max-size": str(max(quota, _MIN_LOG)), "max-file": "2", "compress": "false"}}


def _environment(order: RunOrder, launch: Launch, image: ImageInfo) -> dict[str, str]:
    extra = {"PYTHONUNBUFFERED": "1"}  # so that a line is in the log when it is printed
    if launch.user:
        extra |= {"HOME": HOME, "USER": launch.user.name, "LOGNAME": launch.user.name}
    if launch.packages:
        extra["PATH"] = f"{PACKAGES}/bin:{image.path}"
        extra["VIRTUAL_ENV"] = PACKAGES
    if not launch.gpus:
        # With NVIDIA's runtime as the engine's default, images that request all devices would get them.
        extra["NVIDIA_VISIBLE_DEVICES"] = "void"
    if launch.writes_metrics:
        extra[METRIC_FILE] = METRICS
    paths = {file.variable: file.path for file in launch.secret_files}
    ours = dict(launch.environment)
    if INTEROP_THREADS in image.variables and INTEROP_THREADS not in order.training_input.env:
        ours.pop(INTEROP_THREADS, None)
    for mount in _site_mounts(launch):
        extra |= {name: at for name, at in mount.variables_at(mount.path).items() if name not in image.variables}
    return {**extra, **ours, **launch.secrets, **paths}


def _host(gateway: str) -> list[str]:
    """The extra host for services of the host, such as a storage emulator; none if the engine has no bridge."""
    return [f"{HOST}:{gateway}"] if gateway else []


def _limits(launch: Launch, pids_limit: int) -> dict[str, Any]:
    limits: dict[str, Any] = {"PidsLimit": pids_limit}
    if launch.cpus:
        limits["CpusetCpus"] = ",".join(map(str, launch.cpus))
    if launch.memory_bytes:
        memory = max(launch.memory_bytes, _MIN_MEMORY)
        # No swap. Half of it for /dev/shm, which data loaders and NCCL use.
        limits |= {"Memory": memory, "MemorySwap": memory, "ShmSize": memory // 2}
    if launch.gpus or launch.uses_tpus:  # pinned memory
        limits["Ulimits"] = [{"Name": "memlock", "Soft": -1, "Hard": -1}]
    return limits


def _confinement(as_root: bool) -> dict[str, Any]:
    return {
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES) if as_root else [],
        "SecurityOpt": ["no-new-privileges"],
        "IpcMode": "private",
    }


def _mounts(launch: Launch, storage_roots: str) -> list[dict[str, Any]]:
    mounts = []
    if launch.packages:
        mounts.append(_mount(launch.packages, PACKAGES, read_only=True))
    if launch.job_dir_source:
        mounts.append(_mount(launch.job_dir_source, launch.job_dir))
    if storage_roots and STORAGE_ROOTS in launch.environment.values():
        mounts.append(_mount(storage_roots, STORAGE_ROOTS, read_only=True))
    return mounts


def _site_mounts(launch: Launch) -> list[Mount]:
    """The mounts of the launch: an image that keeps its own user has no cache, as that user may not write to it."""
    return [mount for mount in launch.mounts if launch.user is not None or mount.name != CACHE]


def _mount(source: str, target: str, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}
