"""Resources: the requests of a gang, the capacity of an agent, and the assignment. Pure.

A gang is placed on one agent if any could hold it, else on several (`spreading`). In `fit` mode one that is larger than
all of these is scaled down to a machine.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

from trainyard_protocol.job.machines import ReplicaRequest, Resources
from trainyard_protocol.job.resources import GIGABYTE, Capacity, Gpu, is_tpu
from trainyard_protocol.wire.agents import MountOffer
from trainyard_server.domain.scheduling.pools import nodes_of, packed


class Allocation(Protocol):
    """The resources of one replica: amounts, and on a machine CPU numbers and device ids."""

    @property
    def cpus(self) -> Iterable[int]: ...
    @property
    def gpus(self) -> Iterable[str]: ...
    @property
    def vcpus(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def accelerator_type(self) -> str: ...
    @property
    def accelerator_count(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Gang:
    """The resources of one run on its agent. `ended`: the run has ended, but processes of it still run. `parts` are
    those of its replicas in an engine, which have no numbers. `waits`: it has not started there. `further`: it is a
    further part of a run, which counts where its first one is."""

    key: int
    project: str = ""
    cpus: frozenset[int] = frozenset()
    gpus: frozenset[str] = frozenset()
    memory_bytes: int = 0
    ended: bool = False
    parts: tuple[Resources, ...] = ()
    waits: bool = False
    further: bool = False

    @classmethod
    def of(
        cls,
        replicas: Iterable[Allocation],
        key: int = 0,
        project: str = "",
        *,
        ended: bool = False,
        waits: bool = False,
        further: bool = False,
    ) -> "Gang":
        replicas = list(replicas)
        return cls(
            key,
            project,
            cpus=frozenset(cpu for replica in replicas for cpu in replica.cpus),
            gpus=frozenset(gpu for replica in replicas for gpu in replica.gpus),
            memory_bytes=sum(replica.memory_bytes for replica in replicas),
            ended=ended,
            parts=tuple(
                Resources(
                    replica.vcpus, replica.memory_bytes, replica.accelerator_type.upper(), replica.accelerator_count
                )
                for replica in replicas
                if replica.vcpus and not list(replica.cpus)
            ),
            waits=waits,
            further=further,
        )

    @property
    def vcpus(self) -> int:
        return len(self.cpus) + sum(part.vcpus for part in self.parts)

    @property
    def devices(self) -> int:
        return len(self.gpus) + sum(part.accelerator_count for part in self.parts)

    def accelerators(self, capacity: Capacity) -> Counter[str]:
        """Number of devices by type, on an agent with this capacity."""
        if not (self.gpus or self.parts):
            return Counter()
        counts = by_type(gpu for gpu in capacity.gpus if gpu.id in self.gpus)
        for part in self.parts:
            counts[part.accelerator_type] += part.accelerator_count
        return +counts


class Needs(NamedTuple):
    """The part of a job's needs that an agent has or has not: `images`: a runtime of containers; `mounts`, by name, for
    its `project`, which is "" without mounts: then the jobs of all projects are alike."""

    images: bool
    mounts: frozenset[str] = frozenset()
    project: str = ""


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """An agent with the gangs on it. `alive`: it answers. `draining`: it is given no new work, by an operator, or by
    the service for this `drain_reason`. `avoided_until`: retries avoid it, since runs have failed of it. `runs_images`,
    `runs_packages`: its runtimes start jobs with an image, or with packages, now. `engine_problem`: why its
    engine starts nothing now, or "". `no_processes`: why package jobs need that engine, or "". `engine`: it is that of
    an engine that spans hosts, whose capacity changes. `in_flight`: this engine decides what starts, and has so many
    runs at most to choose from; 0: what is free decides. `no_room`: the directory of its machine that has no room, and
    why; "" if all have. `address`: that at which replicas on other agents of its `group` reach its own; "": it has no
    part of a gang over several agents. `unreached`: the ids of the agents that it does not reach, as far as it knows.
    `mounts`: the directories that jobs may mount there."""

    agent_id: str
    name: str
    capacity: Capacity
    mode: Literal["strict", "fit"]
    runs_images: bool
    alive: bool = True
    gangs: tuple[Gang, ...] = ()
    runs_packages: bool = True
    engine_problem: str = ""
    no_processes: str = ""
    draining: bool = False
    engine: bool = False
    in_flight: int = 0
    no_room: str = ""
    drain_reason: str = ""
    avoided_until: datetime | None = None
    address: str = ""
    group: str = ""
    unreached: frozenset[str] = frozenset()
    mounts: tuple[MountOffer, ...] = ()

    @property
    def accepts_work(self) -> bool:
        """Whether work can be placed there now."""
        return self.alive and not self.draining and not self.no_room

    @property
    def has_no_docker(self) -> bool:
        """Whether no container engine answers there, by the words of its agent: one may be started."""
        return not self.engine and self.engine_problem.startswith("no Docker engine answers")

    def starts(self, images: bool) -> bool:
        """Whether its runtimes start such jobs now: with an image (`images`), or with packages."""
        return self.runs_images if images else self.runs_packages

    @property
    def why_draining(self) -> str:
        """A clause about an agent that is draining."""
        return self.drain_reason or "an operator lets it start nothing new"

    def lacks_mount(self, needs: Needs) -> str:
        """A clause about the first mount that the job cannot have there; "" if it can have all."""
        offers = {offer.name: offer for offer in self.mounts}
        for name in sorted(needs.mounts):
            if name not in offers:
                return f"has no mount {name}"
            if not offers[name].serves(needs.project):
                return f"has the mount {name} for other projects than {needs.project}"
        return ""

    def waits_for(self, images: bool) -> str:
        """The reason why such jobs do not start there now."""
        reasons = (self.engine_problem, "" if images else self.no_processes)
        return ", and ".join(filter(None, reasons))


@dataclass(frozen=True, slots=True)
class Assignment:
    """The resources of one replica: amounts, and on a machine CPU numbers and device ids."""

    task: str
    machine_type: str
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    memory_bytes: int
    vcpus: int = 0
    accelerator_type: str = ""
    accelerator_count: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """The replicas of a run on one agent."""

    agent_id: str
    assignments: tuple[Assignment, ...]


@dataclass(frozen=True, slots=True)
class ResourceShare:
    """The amounts for one replica. `gpu_type` None: devices of any type. With `shares_cpus` the replicas of the gang
    are spread over all CPUs of the machine, several to a CPU."""

    task: str
    machine_type: str
    vcpus: int
    memory_bytes: int
    gpu_type: str | None
    gpus: int
    shares_cpus: bool = False

    @property
    def resources(self) -> Resources:
        return Resources(self.vcpus, self.memory_bytes, self.gpu_type or "", self.gpus)


def asked(gang: Iterable[ReplicaRequest]) -> tuple[ResourceShare, ...]:
    return tuple(
        ResourceShare(
            request.task.name,
            request.machine_type,
            request.resources.vcpus,
            request.resources.memory_bytes,
            request.resources.accelerator_type.upper(),
            request.resources.accelerator_count,
        )
        for request in gang
    )


def fits_empty(shares: Sequence[ResourceShare], capacity: Capacity) -> bool:
    """Whether the machine could hold the gang if it held nothing else."""
    if cpus_of(shares, capacity) > capacity.vcpus or memory_of(shares) > capacity.memory_bytes:
        return False
    if capacity.pools and packed(nodes_of(capacity), (share.resources for share in shares)) is None:
        return False
    there = capacity.accelerators
    if any(count > there[kind] for kind, count in gpus_of(shares).items() if kind is not None):
        return False
    return sum(share.gpus for share in shares) <= there.total()


def scaled(requested: Sequence[ResourceShare], capacity: Capacity) -> tuple[ResourceShare, ...]:
    """Scale the gang down to the whole machine, in each dimension in which it is larger, but for TPUs: a program for
    them has no use for anything else."""
    shares = list(requested)
    cpus = len(capacity.cpus)
    if len(shares) > cpus:
        shares = [replace(share, vcpus=1, shares_cpus=True) for share in shares]
    elif sum(share.vcpus for share in shares) > cpus:
        given = _proportional([share.vcpus for share in shares], cpus, least=1)
        shares = [replace(share, vcpus=n) for share, n in zip(shares, given, strict=True)]
    memory = memory_of(shares)
    if memory > capacity.memory_bytes:
        shares = [replace(share, memory_bytes=share.memory_bytes * capacity.memory_bytes // memory) for share in shares]
    scalable = [share for share in shares if not is_tpu(share.gpu_type or "")]
    there = by_type(gpu for gpu in capacity.gpus if not is_tpu(gpu.type))
    if any(count > there[kind or ""] for kind, count in gpus_of(scalable).items()):
        left = iter(_proportional([share.gpus for share in scalable], there.total(), least=0))
        shares = [
            share if is_tpu(share.gpu_type or "") else replace(share, gpu_type=None, gpus=next(left))
            for share in shares
        ]
    return tuple(shares)


def assign_resources(
    shares: Sequence[ResourceShare], cpus: Sequence[int], gpus: Sequence[Gpu]
) -> tuple[Assignment, ...]:
    """Assign free CPUs and devices. There must be enough."""
    cpus, gpus = list(cpus), list(gpus)
    assignments = []
    for number, share in enumerate(shares):
        if share.shares_cpus:
            mine = [cpus[number % len(cpus)]]
        else:
            mine, cpus = cpus[: share.vcpus], cpus[share.vcpus :]
        fitting = [gpu for gpu in gpus if _fits(share.gpu_type, gpu)][: share.gpus]
        gpus = [gpu for gpu in gpus if gpu not in fitting]
        devices = tuple(gpu.id for gpu in fitting)
        types = {gpu.type for gpu in fitting}
        kind = types.pop() if len(types) == 1 else ""
        assignments.append(
            Assignment(
                share.task, share.machine_type, tuple(mine), devices, share.memory_bytes, len(mine), kind, len(devices)
            )
        )
    return tuple(assignments)


def _fits(kind: str | None, gpu: Gpu) -> bool:
    return kind == gpu.type.upper() or (kind is None and not is_tpu(gpu.type))


def assign_amounts(shares: Iterable[ResourceShare]) -> tuple[Assignment, ...]:
    """Assign amounts alone: an engine chooses CPUs and devices itself."""
    return tuple(
        Assignment(
            share.task, share.machine_type, (), (), share.memory_bytes, share.vcpus, share.gpu_type or "", share.gpus
        )
        for share in shares
    )


def cpus_of(shares: Sequence[ResourceShare], capacity: Capacity) -> int:
    """Number of CPUs of the gang; all of the machine, and at least 1, where its replicas share CPUs."""
    if any(share.shares_cpus for share in shares):
        return max(1, capacity.vcpus)
    return sum(share.vcpus for share in shares)


def memory_of(shares: Iterable[ResourceShare]) -> int:
    return sum(share.memory_bytes for share in shares)


def gpus_of(shares: Iterable[ResourceShare]) -> Counter[str | None]:
    """Number of devices by type; devices of any type are under None."""
    requested: Counter[str | None] = Counter()
    for share in shares:
        if share.gpus:
            requested[share.gpu_type] += share.gpus
    return requested


def by_type(gpus: Iterable[Gpu]) -> Counter[str]:
    return Counter(gpu.type.upper() for gpu in gpus)


def describe(vcpus: int, memory_bytes: int, gpus: Mapping[str, int]) -> str:
    """`4 vCPU, 8.0 GB and 1 x NVIDIA_TESLA_T4`"""
    parts = [f"{vcpus} vCPU", f"{memory_bytes / GIGABYTE:.1f} GB"]
    parts += [f"{count} x {kind}" for kind, count in sorted(gpus.items()) if count]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def needs(gang: Iterable[ReplicaRequest]) -> str:
    shares = asked(gang)
    gpus = {kind or "": count for kind, count in gpus_of(shares).items()}
    return describe(sum(share.vcpus for share in shares), memory_of(shares), gpus)


def needs_on(gang: Iterable[ReplicaRequest], shares: Sequence[ResourceShare], agent: AgentSnapshot) -> str:
    """The resources that a gang gets on an agent, where it may be scaled down, and then those that it asked for."""
    given = {kind or "GPU": count for kind, count in gpus_of(shares).items()}
    there = describe(cpus_of(shares, agent.capacity), memory_of(shares), given)
    requested = needs(gang)
    return there if there == requested else f"{there} (scaled down from {requested})"


def has(capacity: Capacity) -> str:
    amounts = describe(capacity.vcpus, capacity.memory_bytes, capacity.accelerators)
    nodes = sum(pool.nodes for pool in capacity.pools)
    return f"{amounts} on {nodes} {'node' if nodes == 1 else 'nodes'}" if nodes else amounts


def full_queue(agent: AgentSnapshot) -> str:
    runs = "1 run waits" if agent.in_flight == 1 else f"{agent.in_flight} runs wait"
    return f"{runs} in the own queue of agent {agent.name}, which gets no more at once (--in-flight)"


def scaling(gang: Sequence[ReplicaRequest], shares: Sequence[ResourceShare], agent: AgentSnapshot) -> str:
    """A sentence with the request and the share of each scaled replica, equal neighbours together; "" if none is."""
    groups: list[tuple[str, list[str]]] = []
    for requested, given in zip(asked(gang), shares, strict=True):
        if requested == given:
            continue
        change = f"asked for {_one(requested)} and gets {_one(given)}"
        if groups and groups[-1][0] == change:
            groups[-1][1].append(requested.task)
        else:
            groups.append((change, [requested.task]))
    if not groups:
        return ""
    parts = [
        f"{names[0] if len(names) == 1 else f'{names[0]} to {names[-1]} each'} {change}" for change, names in groups
    ]
    return f"Scaled down to fit agent {agent.name} ({has(agent.capacity)}): {'; '.join(parts)}."


def without_gpus(gang: Iterable[ReplicaRequest], given: Iterable[Assignment], agent: AgentSnapshot) -> str:
    """A sentence about the replicas that asked for GPUs and have none; "" if each has some."""
    bare = [
        (request.task.name, f"{request.resources.accelerator_count} x {request.resources.accelerator_type.upper()}")
        for request, assignment in zip(gang, given, strict=True)
        if request.resources.accelerator_count and not assignment.accelerator_count
    ]
    if not bare:
        return ""
    first, last, amount = bare[0][0], bare[-1][0], " and ".join(dict.fromkeys(amount for _, amount in bare))
    who, them = (first, "it") if len(bare) == 1 else (f"{first} to {last}", "them")
    return f"{who} asked for {amount}, but agent {agent.name} has no GPU for {them}: CPUs do all the work."


def _one(share: ResourceShare) -> str:
    gpus = {share.gpu_type or "GPU of another type": share.gpus}
    text = describe(share.vcpus, share.memory_bytes, gpus)
    return f"{text}, sharing its vCPU" if share.shares_cpus else text


def _proportional(requested: Sequence[int], total: int, least: int) -> list[int]:
    """Divide `total` units in proportion to the requests (D'Hondt), each between `least` and its request."""
    given = [least] * len(requested)
    for _ in range(total - sum(given)):
        below = [i for i, n in enumerate(given) if n < requested[i]]
        if not below:
            break
        given[max(below, key=lambda i: (requested[i] / (given[i] + 1), -i))] += 1
    return given
