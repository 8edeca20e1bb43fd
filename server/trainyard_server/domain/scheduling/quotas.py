"""Quotas: what a project may use at the same time. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainyard_protocol.sync import Capacity
from trainyard_server.domain.scheduling.resources import (
    Assignment,
    Gang,
    ResourceShare,
    by_type,
    cpus_of,
    gpus_of,
)

JOBS, VCPUS, GPUS = "jobs", "vcpus", "gpus"
"""Names of limits. Accelerator types, in capitals, are names of limits too."""

Usage = Mapping[str, int]
"""An amount for each name of a limit; a missing name is 0."""

_UNITS = {JOBS: "running jobs", VCPUS: "vCPU", GPUS: "GPUs"}


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits by project. `default` holds for projects that are not listed; a name without a limit is left out."""

    default: Usage = field(default_factory=dict)
    projects: Mapping[str, Usage] = field(default_factory=dict)

    def of(self, project: str) -> Usage:
        return self.projects.get(project, self.default)


def used_by(gang: Gang, capacity: Capacity) -> Counter[str]:
    """The use of a run: what it was assigned, not what it requested."""
    types = by_type(gpu for gpu in capacity.gpus if gpu.id in gang.gpus)
    return Counter({JOBS: 1, VCPUS: len(gang.cpus), GPUS: len(gang.gpus), **types})


def used_after(assignments: Iterable[Assignment], capacity: Capacity) -> Counter[str]:
    """The use of a run with these assignments."""
    cpus = frozenset(cpu for one in assignments for cpu in one.cpus)
    gpus = frozenset(gpu for one in assignments for gpu in one.gpus)
    return used_by(Gang(0, cpus=cpus, gpus=gpus), capacity)


def usage_of(shares: tuple[ResourceShare, ...], capacity: Capacity) -> Counter[str]:
    """The use of a gang on such a machine. Devices of any type count for no single type."""
    by_kind = gpus_of(shares)
    types = {kind: count for kind, count in by_kind.items() if kind is not None}
    return Counter({JOBS: 1, VCPUS: cpus_of(shares, capacity), GPUS: by_kind.total(), **types})


def excess(requested: Usage, limits: Usage) -> str:
    """The first name whose request exceeds its limit; "" if there is none."""
    return next((name for name, limit in limits.items() if requested.get(name, 0) > limit), "")


def amount(name: str, count: int) -> str:
    """`4 vCPU`, `2 GPUs`, `1 NVIDIA_TESLA_T4`"""
    return f"{count} {_UNITS.get(name, name)}"
