"""Resources: the requests of a gang, the capacity of an agent, and the assignment. Pure.

A gang is placed on one agent whole. In `fit` mode one that is larger than the whole machine is scaled down to it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trainyard_protocol.machines import GIGABYTE, ReplicaRequest
from trainyard_protocol.sync import Capacity, Gpu


@dataclass(frozen=True, slots=True)
class Gang:
    """The resources of one run on its agent. `ended`: the run has ended, but processes of it still run."""

    key: int
    project: str = ""
    cpus: frozenset[int] = frozenset()
    gpus: frozenset[str] = frozenset()
    memory_bytes: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class AgentSnapshot:
    """An agent with the gangs on it. `alive`: work can be placed there now. `runs_images`,
    `runs_packages`: its runtimes start jobs with an image, or with packages, now. `engine_problem`: why its container
    engine starts nothing now, or ""."""

    agent_id: str
    name: str
    capacity: Capacity
    mode: Literal["strict", "fit"]
    runs_images: bool
    alive: bool = True
    gangs: tuple[Gang, ...] = ()
    runs_packages: bool = True
    engine_problem: str = ""

    def starts(self, images: bool) -> bool:
        """Whether its runtimes start such jobs now: with an image (`images`), or with packages."""
        return self.runs_images if images else self.runs_packages


@dataclass(frozen=True, slots=True)
class Assignment:
    """The resources of one replica: CPU numbers, device ids, bytes."""

    task: str
    machine_type: str
    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    memory_bytes: int


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
    if cpus_of(shares, capacity) > len(capacity.cpus) or memory_of(shares) > capacity.memory_bytes:
        return False
    there = by_type(capacity.gpus)
    if any(count > there[kind] for kind, count in gpus_of(shares).items() if kind is not None):
        return False
    return sum(share.gpus for share in shares) <= there.total()


def scaled(requested: Sequence[ResourceShare], capacity: Capacity) -> tuple[ResourceShare, ...]:
    """Scale the gang down to the whole machine, in each dimension in which it is larger."""
    shares = list(requested)
    cpus = len(capacity.cpus)
    if len(shares) > cpus:
        shares = [replace(share, vcpus=1, shares_cpus=True) for share in shares]
    elif sum(share.vcpus for share in shares) > cpus:
        given = _proportional([share.vcpus for share in shares], cpus, least=1)
        shares = [replace(share, vcpus=n) for share, n in zip(shares, given, strict=True)]
    memory = memory_of(shares)
    if memory > capacity.memory_bytes:
        shares = [
            replace(share, memory_bytes=share.memory_bytes * capacity.memory_bytes // memory)
            for share in shares
        ]
    there = by_type(capacity.gpus)
    if any(count > there[kind or ""] for kind, count in gpus_of(shares).items()):
        given = _proportional([share.gpus for share in shares], there.total(), least=0)
        shares = [replace(share, gpu_type=None, gpus=n) for share, n in zip(shares, given, strict=True)]
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
        fitting = [gpu for gpu in gpus if share.gpu_type in (None, gpu.type.upper())][: share.gpus]
        gpus = [gpu for gpu in gpus if gpu not in fitting]
        devices = tuple(gpu.id for gpu in fitting)
        assignments.append(
            Assignment(share.task, share.machine_type, tuple(mine), devices, share.memory_bytes)
        )
    return tuple(assignments)


def cpus_of(shares: Sequence[ResourceShare], capacity: Capacity) -> int:
    """Number of CPUs of the gang; all of the machine, and at least 1, where its replicas share CPUs."""
    if any(share.shares_cpus for share in shares):
        return max(1, len(capacity.cpus))
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


def has(capacity: Capacity) -> str:
    return describe(len(capacity.cpus), capacity.memory_bytes, by_type(capacity.gpus))


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
        f"{names[0] if len(names) == 1 else f'{names[0]} to {names[-1]} each'} {change}"
        for change, names in groups
    ]
    return f"Scaled down to fit agent {agent.name} ({has(agent.capacity)}): {'; '.join(parts)}."


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
