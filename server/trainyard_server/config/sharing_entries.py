"""Entries of the quota file about sharing: of the site, and of each project."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from trainyard_protocol.fields import validation_error
from trainyard_protocol.job.config.yaml_file import SiteEntry
from trainyard_protocol.job.training_input import Band
from trainyard_protocol.lines.time_parsing import parse_duration
from trainyard_server.domain.access.permissions import Role
from trainyard_server.domain.scheduling.sharing import FairShare, IdlePolicy, ProjectRules, Sharing


def _time(value: object) -> object:
    """A duration such as `7d`."""
    if isinstance(value, timedelta):
        return value
    try:
        time = parse_duration(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise validation_error(f"{error}.") from error
    if not time:
        raise validation_error("must be above 0.")
    return time


Time = Annotated[timedelta, BeforeValidator(_time)]
BandName = Literal["production", "normal", "batch"]
RoleName = Literal["submitter", "admin"]
_Hours = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Budget(SiteEntry):
    """Hours of each calendar month (UTC)."""

    gpu_hours: _Hours | None = None
    cpu_hours: _Hours | None = None


class _MinGpuUse(SiteEntry):
    percent: Annotated[float, Field(gt=0, le=100)]
    over: Time


class _BandEntry(SiteEntry):
    max_running_time: Time | None = None


class _FairShareEntry(SiteEntry):
    half_life: Time = timedelta(days=7)
    delay: Time = timedelta(days=1)
    gpu_weight: Annotated[float, Field(ge=0, le=10_000)] = 10.0


class _Preemption(SiteEntry):
    min_run: Time = timedelta(minutes=10)


class ProjectSharingEntries(SiteEntry):
    """The entries of a project, or the default ones, about sharing."""

    share: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    max_priority: Annotated[int, Field(ge=0, le=1000)] | None = None
    bands: dict[BandName, RoleName] = Field(default_factory=dict)
    preemptible: bool = False
    budget: _Budget | None = None
    min_gpu_use: _MinGpuUse | None = None

    def rules(self, default: "ProjectSharingEntries") -> ProjectRules:
        """The rules of the project, with those of the default where it has none."""
        own = {name: getattr(self if name in self.model_fields_set else default, name) for name in _NAMES}
        budget = own["budget"] or _Budget()
        idle = own["min_gpu_use"]
        return ProjectRules(
            share=own["share"],
            bands={Band(name.upper()): Role(role) for name, role in {**default.bands, **self.bands}.items()},
            max_priority=own["max_priority"],
            preemptible=own["preemptible"],
            gpu_hours=budget.gpu_hours,
            cpu_hours=budget.cpu_hours,
            idle=None if idle is None else IdlePolicy(idle.percent, idle.over),
        )


_NAMES = tuple(ProjectSharingEntries.model_fields)


class SharingEntries(SiteEntry):
    """The entries of the site about sharing."""

    fair_share: _FairShareEntry | None = None
    overdue_after: Time = timedelta(days=7)
    preemption: _Preemption = _Preemption()
    bands: dict[BandName, _BandEntry] = Field(default_factory=dict)

    def sharing(self, default: ProjectSharingEntries, projects: Mapping[str, ProjectSharingEntries]) -> Sharing:
        """The rules of the site, without standings."""
        fair = self.fair_share
        return Sharing(
            fair_share=None if fair is None else FairShare(fair.half_life, fair.delay, fair.gpu_weight),
            default=default.rules(default),
            projects={name: own.rules(default) for name, own in projects.items()},
            run_limits={
                Band(name.upper()): entry.max_running_time
                for name, entry in self.bands.items()
                if entry.max_running_time is not None
            },
            overdue_after=self.overdue_after,
            min_run=self.preemption.min_run,
        )
