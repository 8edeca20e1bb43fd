"""Sharing of a site between projects and people: bands of priority, fair share, and what may be preempted. Pure.

The queue is ordered by band, then by `scheduling.priority`, then by age. With fair share a job counts as younger the
more of the site its project and its owner have used lately: by at most `delay`, so nobody waits longer than that for
it. A job that has waited for `overdue_after` goes ahead of all that have not, in the order of their waiting: so none
waits for ever.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from trainyard_protocol.job.keys.scheduling import Band
from trainyard_server.domain.access.permissions import Role
from trainyard_server.domain.durations import duration
from trainyard_server.domain.snapshots import JobSnapshot

_LEVELS = {Band.PRODUCTION: 0, Band.NORMAL: 1, Band.BATCH: 2}
_OVERDUE = -1

QueueOrder = tuple[int, int, datetime, int]


class Account(NamedTuple):
    """An owner in a project."""

    project: str
    owner: str


@dataclass(frozen=True, slots=True)
class FairShare:
    """Rules of fair share. Usage loses half of its weight in each `half_life`; a GPU-hour counts as `gpu_weight`
    CPU-hours. The job of an account that used everything counts as younger by `delay`."""

    half_life: timedelta = timedelta(days=7)
    delay: timedelta = timedelta(days=1)
    gpu_weight: float = 10.0


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """GPUs that a run holds are to be used by at least `percent` over a time; else it is warned of, and after the same
    time again it is stopped."""

    percent: float
    over: timedelta


@dataclass(frozen=True, slots=True)
class ProjectRules:
    """Rules of one project. `share`: beside those of other projects. `bands`: the least role that may ask for each.
    `max_priority`: of submitters; None: any. `preemptible`: its batch jobs may be stopped for others. A month with more
    hours than the budgets turns its jobs into batch jobs."""

    share: float = 1.0
    bands: Mapping[Band, Role] = field(default_factory=dict)
    max_priority: int | None = None
    preemptible: bool = False
    gpu_hours: float | None = None
    cpu_hours: float | None = None
    idle: IdlePolicy | None = None

    def role_of(self, band: Band) -> Role:
        """The least role that may ask for the band."""
        return self.bands.get(band, Role.ADMIN if band is Band.PRODUCTION else Role.SUBMITTER)


@dataclass(frozen=True, slots=True)
class ShareStanding:
    """The delay by which the jobs of an account count as younger, its part of what was used lately, and its share."""

    delay: timedelta = timedelta()
    used: float = 0.0
    share: float = 1.0


_NO_RULES = ProjectRules()
_EVEN = ShareStanding()


@dataclass(frozen=True, slots=True)
class Sharing:
    """The rules of a site, and how its accounts stand now. `run_limits`: the longest maxRunningTime in each band.
    `min_run`: a run that is preempted has lasted as long. `checkpoint_wait`: the longest time for which a run that
    gives way may go on to its next checkpoint."""

    fair_share: FairShare | None = None
    default: ProjectRules = _NO_RULES
    projects: Mapping[str, ProjectRules] = field(default_factory=dict)
    run_limits: Mapping[Band, timedelta] = field(default_factory=dict)
    overdue_after: timedelta = timedelta(days=7)
    min_run: timedelta = timedelta(minutes=10)
    checkpoint_wait: timedelta = timedelta(minutes=10)
    standings: Mapping[Account, ShareStanding] = field(default_factory=dict)
    over_budget: frozenset[str] = frozenset()

    def of(self, project: str) -> ProjectRules:
        return self.projects.get(project, self.default)

    @property
    def preempts(self) -> bool:
        """Whether jobs of any project may be preempted."""
        return any(rules.preemptible for rules in (self.default, *self.projects.values()))

    @property
    def has_budgets(self) -> bool:
        """Whether any project has a budget."""
        every = (self.default, *self.projects.values())
        return any(rules.gpu_hours is not None or rules.cpu_hours is not None for rules in every)

    def band_of(self, job: JobSnapshot) -> Band:
        """The band in which the job is planned."""
        return Band.BATCH if job.project in self.over_budget else job.band

    def overdue_at(self, job: JobSnapshot) -> datetime:
        """When the job goes ahead of all that have waited less."""
        return job.queued_at + self.overdue_after

    def order(self, job: JobSnapshot, now: datetime) -> QueueOrder:
        """The key by which the queue is sorted."""
        if self.overdue_at(job) <= now:
            return (_OVERDUE, 0, job.queued_at, job.key)
        standing = self.standings.get(Account(job.project, job.owner), _EVEN)
        return (_LEVELS[self.band_of(job)], -job.priority, job.created_at + standing.delay, job.key)

    def is_above(self, band: Band, other: Band) -> bool:
        return _LEVELS[band] < _LEVELS[other]

    def explanation(self, job: JobSnapshot, now: datetime) -> str:
        """A sentence or two about the job's place in the queue; "" where priority and age alone decide it."""
        sentences = []
        if self.overdue_at(job) <= now:
            waited = duration(self.overdue_after.total_seconds())
            sentences.append(f"It has waited for more than {waited}, so it goes ahead of all jobs that have not.")
        elif job.project in self.over_budget:
            sentences.append(
                f"The project {job.project} has used up this month's budget, so its jobs are in the band batch."
            )
        elif job.band is not Band.NORMAL:
            sentences.append(f"It is in the band {job.band.lower()}.")
        standing = self.standings.get(Account(job.project, job.owner), _EVEN)
        if standing.delay and self.overdue_at(job) > now:
            sentences.append(
                f"Moved back by {duration(standing.delay.total_seconds())}: {job.owner or 'its owner'} ({job.project}) "
                f"recently used {standing.used:.0%} of the site; the fair share is {standing.share:.0%}."
            )
        return " ".join(sentences)


FIRST_COME = Sharing()
"""No rules: band, priority and age decide."""


def standings(
    rules: Sharing, usage: Mapping[Account, float], waiting: Iterable[Account]
) -> dict[Account, ShareStanding]:
    """The standing of each account that has used something, or waits. `usage`: weighted hours, of which the older count
    less. As in Slurm's multifactor plugin a factor is 2 ** -(used / share): of the project among projects, and of the
    owner in its project; the delay is their mean distance from 1."""
    if rules.fair_share is None:
        return {}
    accounts = {*usage, *waiting}
    of_project: dict[str, float] = defaultdict(float)
    for account, used in usage.items():
        of_project[account.project] += used
    total = sum(usage.values())
    if total <= 0:
        return {}
    projects = {account.project for account in accounts}
    shares = {project: max(rules.of(project).share, 0.0) for project in projects}
    all_shares = sum(shares.values()) or 1.0
    owners = Counter(account.project for account in accounts)
    standing = {}
    for account in accounts:
        share = shares[account.project] / all_shares
        project_factor = _factor(of_project[account.project] / total, share)
        in_project = usage.get(account, 0.0) / of_project[account.project] if of_project[account.project] else 0.0
        owner_factor = _factor(in_project, 1 / owners[account.project])
        delay = rules.fair_share.delay * (1 - (project_factor + owner_factor) / 2)
        used = usage.get(account, 0.0) / total
        standing[account] = ShareStanding(delay, used, share / owners[account.project])
    return standing


def decayed(hours: float, age: timedelta, half_life: timedelta) -> float:
    """Hours that were used so long ago, by their weight now."""
    return float(hours * 2.0 ** -(max(age, timedelta()) / half_life))


def _factor(used: float, share: float) -> float:
    if used <= 0:
        return 1.0
    return float(2.0 ** -(used / share)) if share > 0 else 0.0
