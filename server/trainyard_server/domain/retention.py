"""Retention: which jobs are removed for their age, of the site and of each project. Pure.

Only jobs that have ended are considered, the oldest first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

ALL = timedelta.max
"""Jobs are kept for ever, whatever the site says."""


@dataclass(frozen=True, slots=True)
class ProjectRetentions:
    """The times for which projects keep their jobs; None: as the site. `default` holds for those that are not
    listed."""

    default: timedelta | None = None
    projects: Mapping[str, timedelta | None] = field(default_factory=dict)


SITES_RETENTION = ProjectRetentions()
"""No project has a limit of its own."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The time for which the site keeps jobs after their end (None: for ever), and those of projects."""

    keep_jobs: timedelta | None = None
    own: ProjectRetentions = SITES_RETENTION

    @property
    def keeps_everything(self) -> bool:
        return all(time in (None, ALL) for time in (self.keep_jobs, self.own.default, *self.own.projects.values()))

    def is_old(self, project: str, ended_at: datetime, now: datetime) -> bool:
        """Whether a job of the project that ended then is removed."""
        own = self.own.projects.get(project, self.own.default)
        keep_jobs = self.keep_jobs if own is None else own
        return keep_jobs is not None and now - ended_at > keep_jobs


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended."""

    key: int
    ended_at: datetime
    project: str = ""


def removals(ended: Iterable[EndedJob], now: datetime, policy: RetentionPolicy) -> list[int]:
    """The keys of the jobs that the policy removes now, the oldest first."""
    old = [job for job in ended if policy.is_old(job.project, job.ended_at, now)]
    return [job.key for job in sorted(old, key=lambda job: (job.ended_at, job.key))]
