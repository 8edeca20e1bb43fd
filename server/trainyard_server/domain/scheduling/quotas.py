"""Quotas: what a project may use at the same time. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from trainyard_protocol.job.resources import Capacity
from trainyard_server.domain.retention import SITES_RETENTION, ProjectRetentions
from trainyard_server.domain.scheduling.resources import Assignment, Gang, ResourceShare, cpus_of, gpus_of
from trainyard_server.domain.scheduling.sharing import FIRST_COME, Sharing

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
    sharing: Sharing = FIRST_COME
    """The rules of sharing, which order the queue."""
    retention: ProjectRetentions = SITES_RETENTION
    """How long the jobs of projects are kept."""

    def of(self, project: str) -> Usage:
        return self.projects.get(project, self.default)


def used_by(gang: Gang, capacity: Capacity) -> Counter[str]:
    """The use of a run: what it was assigned, not what it requested."""
    jobs = 0 if gang.further else 1
    return Counter({JOBS: jobs, VCPUS: gang.vcpus, GPUS: gang.devices, **gang.accelerators(capacity)})


def used_after(assignments: Iterable[Assignment], capacity: Capacity) -> Counter[str]:
    """The use of a run with these assignments."""
    return used_by(Gang.of(assignments), capacity)


def usage_of(shares: tuple[ResourceShare, ...], capacity: Capacity) -> Counter[str]:
    """The use of a gang on such a machine. Devices of any type count for no single type."""
    by_kind = gpus_of(shares)
    types = {kind: count for kind, count in by_kind.items() if kind is not None}
    return Counter({JOBS: 1, VCPUS: cpus_of(shares, capacity), GPUS: by_kind.total(), **types})


def together(usage: Usage, other: Usage) -> Usage:
    """The use of two parts of a run, which is one job."""
    total = Counter(usage)
    total.update(other)
    return {**total, JOBS: 1}


def excess(requested: Usage, limits: Usage) -> str:
    """The first name whose request exceeds its limit; "" if there is none."""
    return next((name for name, limit in limits.items() if requested.get(name, 0) > limit), "")


def amount(name: str, count: int) -> str:
    """`4 vCPU`, `2 GPUs`, `1 NVIDIA_TESLA_T4`"""
    return f"{count} {_UNITS.get(name, name)}"
