"""Entries of the quota file: of each project, and of the site."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trainyard_protocol.fields import validation_error
from trainyard_protocol.job.config.yaml_file import SiteEntry
from trainyard_protocol.job.keys.scheduling import Band
from trainyard_protocol.lines.time_parsing import parse_duration
from trainyard_server.domain.access.permissions import Role
from trainyard_server.domain.retention import ALL
from trainyard_server.domain.scheduling.quotas import GPUS, JOBS, VCPUS
from trainyard_server.domain.scheduling.sharing import FairShare, IdlePolicy, ProjectRules


def read_keep_jobs(text: str) -> timedelta:
    """The time of `90d`; ALL for `all`. Raises ValueError with the rest of a sentence."""
    if text == "all":
        return ALL
    try:
        time = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"must be `all`, or {str(error).removeprefix('must be ')}") from error
    if not time:
        raise ValueError("must be above 0: a job that ends must be there to be read")
    return time


def _keep_jobs(value: object) -> object:
    try:
        return value if value is None else read_keep_jobs(str(value))
    except ValueError as error:
        raise validation_error(f"{error}.") from error


def _time(value: object) -> timedelta:
    """The time of `7d`."""
    try:
        time = parse_duration(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise validation_error(f"{error}.") from error
    if not time:
        raise validation_error("must be above 0.")
    return time


_Time = Annotated[timedelta, BeforeValidator(_time)]
_Count = Annotated[int, Field(ge=0)] | None
_Hours = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_Pattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9*?._:/@\[\]-]+$")]
_BandName = Literal["production", "normal", "batch"]


class _Budget(SiteEntry):
    """Hours of each calendar month (UTC)."""

    gpu_hours: _Hours | None = None
    cpu_hours: _Hours | None = None


class _MinGpuUse(SiteEntry):
    percent: Annotated[float, Field(gt=0, le=100)]
    over: _Time


class ProjectEntries(SiteEntry):
    """The entries of a project, or the default ones."""

    running_jobs: _Count = None
    vcpus: _Count = None
    gpus: _Count = None
    accelerators: dict[str, _Count] = Field(default_factory=dict)
    images: list[_Pattern] | None = None
    keep_jobs: Annotated[timedelta | None, BeforeValidator(_keep_jobs)] = None
    share: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    max_priority: Annotated[int, Field(ge=0, le=1000)] | None = None
    bands: dict[_BandName, Literal["submitter", "admin"]] = Field(default_factory=dict)
    preemptible: bool = False
    budget: _Budget | None = None
    min_gpu_use: _MinGpuUse | None = None

    def over(self, default: "ProjectEntries") -> "ProjectEntries":
        """These entries, with the default ones where they have none."""
        own = {name: getattr(self, name) for name in self.model_fields_set}
        own["bands"] = {**default.bands, **self.bands}
        own["accelerators"] = {**default.by_type(), **self.by_type()}
        return default.model_copy(update=own)

    def by_type(self) -> dict[str, int | None]:
        return {kind.upper(): limit for kind, limit in self.accelerators.items()}

    def limits(self) -> dict[str, int]:
        """The limits by name."""
        named = {JOBS: self.running_jobs, VCPUS: self.vcpus, GPUS: self.gpus, **self.by_type()}
        return {name: limit for name, limit in named.items() if limit is not None}

    def rules(self) -> ProjectRules:
        """The rules of sharing."""
        budget, idle = self.budget or _Budget(), self.min_gpu_use
        return ProjectRules(
            share=self.share,
            bands={Band(name.upper()): Role(role) for name, role in self.bands.items()},
            max_priority=self.max_priority,
            preemptible=self.preemptible,
            gpu_hours=budget.gpu_hours,
            cpu_hours=budget.cpu_hours,
            idle=None if idle is None else IdlePolicy(idle.percent, idle.over),
        )


class _FairShare(SiteEntry):
    half_life: _Time = timedelta(days=7)
    delay: _Time = timedelta(days=1)
    gpu_weight: Annotated[float, Field(ge=0, le=10_000)] = 10.0

    def rules(self) -> FairShare:
        return FairShare(self.half_life, self.delay, self.gpu_weight)


class _Preemption(SiteEntry):
    min_run: _Time = timedelta(minutes=10)
    checkpoint_wait: _Time = timedelta(minutes=10)


class _Band(SiteEntry):
    max_running_time: _Time | None = None


class SiteEntries(SiteEntry):
    """The whole file."""

    default: ProjectEntries = ProjectEntries()
    projects: dict[str, ProjectEntries] = Field(default_factory=dict)
    fair_share: _FairShare | None = None
    overdue_after: _Time = timedelta(days=7)
    preemption: _Preemption = _Preemption()
    bands: dict[_BandName, _Band] = Field(default_factory=dict)
