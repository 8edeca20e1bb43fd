"""Retention: which jobs and which logs are removed, by age and by size, of the site and of each project. Pure.

Only jobs that have ended are considered, the oldest first.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

ALL = timedelta.max
"""Jobs are kept for ever, whatever the site says."""


@dataclass(frozen=True, slots=True)
class ProjectRetention:
    """Limits of one project; None: not given. `keep_log_bytes`: of the logs of the project together."""

    keep_jobs: timedelta | None = None
    keep_log_bytes: int | None = None


NO_LIMITS = ProjectRetention()


@dataclass(frozen=True, slots=True)
class ProjectRetentions:
    """Limits by project. `default` holds for those that are not listed."""

    default: ProjectRetention = NO_LIMITS
    projects: Mapping[str, ProjectRetention] = field(default_factory=dict)


SITES_RETENTION = ProjectRetentions()
"""No project has limits of its own."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits of the site: the time for which jobs are kept after their end, unless their project has another, and the
    bytes of all logs together. None: no limit. `own`: those of projects."""

    keep_jobs: timedelta | None = None
    keep_log_bytes: int | None = None
    own: ProjectRetentions = SITES_RETENTION

    @property
    def keeps_everything(self) -> bool:
        all_own = (self.own.default, *self.own.projects.values())
        return self.keep_jobs is None and not self.measures and all(own.keep_jobs in (None, ALL) for own in all_own)

    @property
    def measures(self) -> bool:
        """Whether sizes of logs matter."""
        all_own = (self.own.default, *self.own.projects.values())
        return self.keep_log_bytes is not None or any(own.keep_log_bytes is not None for own in all_own)

    def of(self, project: str) -> ProjectRetention:
        """The limits that hold for a project; the size is of its own logs."""
        own = self.own.projects.get(project, self.own.default)
        keep_jobs = self.keep_jobs if own.keep_jobs is None else own.keep_jobs
        return ProjectRetention(None if keep_jobs == ALL else keep_jobs, own.keep_log_bytes)


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that has ended, with the bytes of its log; 0 without one."""

    key: int
    ended_at: datetime
    log_bytes: int
    project: str = ""


@dataclass(frozen=True, slots=True)
class Removals:
    """Keys, the oldest first: of `jobs` to remove whole, and of others that lose their log alone, for the limit of
    their project and for that of the site."""

    jobs: tuple[int, ...] = ()
    project_logs: tuple[int, ...] = ()
    logs: tuple[int, ...] = ()


def removals(
    ended: Iterable[EndedJob], log_bytes: Mapping[str, int], now: datetime, policy: RetentionPolicy
) -> Removals:
    """The removals that the policy asks for now. `log_bytes` has the logs of each project, of jobs that have not ended,
    too. The limits of projects come first, then that of the site."""
    ordered = sorted(ended, key=lambda job: (job.ended_at, job.key))
    jobs = [job for job in ordered if _is_old(job, now, policy)]
    gone = {job.key for job in jobs}
    sizes = dict(log_bytes)
    for job in jobs:
        sizes[job.project] = sizes.get(job.project, 0) - job.log_bytes
    of_projects: list[EndedJob] = []
    for project, size in sizes.items():
        limit = policy.of(project).keep_log_bytes
        if limit is not None:
            candidates = [job for job in ordered if job.project == project and job.key not in gone]
            of_projects += _until_below(candidates, size - limit)
    gone |= {job.key for job in of_projects}
    logs: Sequence[EndedJob] = ()
    if policy.keep_log_bytes is not None:
        left = sum(sizes.values()) - sum(job.log_bytes for job in of_projects)
        logs = list(_until_below([job for job in ordered if job.key not in gone], left - policy.keep_log_bytes))
    of_projects.sort(key=lambda job: (job.ended_at, job.key))
    return Removals(_keys(jobs), _keys(of_projects), _keys(logs))


def _is_old(job: EndedJob, now: datetime, policy: RetentionPolicy) -> bool:
    keep_jobs = policy.of(job.project).keep_jobs
    return keep_jobs is not None and now - job.ended_at > keep_jobs


def _until_below(ordered: Iterable[EndedJob], excess: int) -> Iterator[EndedJob]:
    """The first jobs whose logs make up for the excess."""
    for job in ordered:
        if excess <= 0:
            return
        if job.log_bytes:
            yield job
            excess -= job.log_bytes


def _keys(jobs: Iterable[EndedJob]) -> tuple[int, ...]:
    return tuple(job.key for job in jobs)
