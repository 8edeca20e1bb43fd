"""What a project may use at the same time. Pure: limits and what is used in, sentences out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainyard_protocol.sync import Capacity
from trainyard_server.domain.scheduling.resources import (
    Assignment,
    Gang,
    Share,
    by_type,
    cpus_of,
    gpus_of,
)

JOBS, VCPUS, GPUS = "jobs", "vcpus", "gpus"
"""What is limited, beside accelerators by the name of their type in capitals."""

Usage = Mapping[str, int]
"""How much of what is limited; what is not named is 0."""

_UNITS = {JOBS: "running jobs", VCPUS: "vCPU", GPUS: "GPUs"}


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits by project. A project that is not named has the default; what is not limited is not named."""

    default: Usage = field(default_factory=dict)
    projects: Mapping[str, Usage] = field(default_factory=dict)

    def of(self, project: str) -> Usage:
        return self.projects.get(project, self.default)


def used_by(gang: Gang, capacity: Capacity) -> Counter[str]:
    """What a run counts for: what it got, not what it asked for."""
    types = by_type(gpu for gpu in capacity.gpus if gpu.id in gang.gpus)
    return Counter({JOBS: 1, VCPUS: len(gang.cpus), GPUS: len(gang.gpus), **types})


def used_after(assignments: Iterable[Assignment], capacity: Capacity) -> Counter[str]:
    """What a run will count for that gets these."""
    cpus = frozenset(cpu for one in assignments for cpu in one.cpus)
    gpus = frozenset(gpu for one in assignments for gpu in one.gpus)
    return used_by(Gang(0, cpus=cpus, gpus=gpus), capacity)


def wanted_by(shares: tuple[Share, ...], capacity: Capacity) -> Counter[str]:
    """What a gang would count for on such a machine. Devices of any type count as no type's."""
    by_kind = gpus_of(shares)
    types = {kind: count for kind, count in by_kind.items() if kind is not None}
    return Counter({JOBS: 1, VCPUS: cpus_of(shares, capacity), GPUS: by_kind.total(), **types})


def excess(wanted: Usage, limits: Usage) -> str:
    """The first thing of which more is wanted than the limit; "" if there is none."""
    return next((name for name, limit in limits.items() if wanted.get(name, 0) > limit), "")


def amount(name: str, count: int) -> str:
    """`4 vCPU`, `2 GPUs`, `1 NVIDIA_TESLA_T4`"""
    return f"{count} {_UNITS.get(name, name)}"
