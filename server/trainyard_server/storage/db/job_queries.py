"""Which jobs a list shows, and in which order: the SQL of it, over all projects.

The jobs of a page are found in indexes that cover the question, and only those are read, so that a page takes about as
long among fifty thousand jobs as among fifty.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, Select, and_, func, or_, select, union
from sqlalchemy.orm import InstrumentedAttribute, Session

from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState
from trainyard_server.storage.db.models import JobLabelRow, JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.repository import LIVE_RUNS, Reader


class Order(StrEnum):
    """What a list is sorted by; what is equal in that is sorted by its creation, in the same direction."""

    CREATED = "created"
    NAME = "name"
    STATE = "state"
    OWNER = "owner"
    STARTED = "started"
    ENDED = "ended"


COUNTED = 1_000
"""How many jobs are counted where that takes a look at each of them."""

_MANY = 3_000
"""A label that so many jobs have is common."""

Label = tuple[str, str | None]

_UNFINISHED = tuple(state for state in JobState if state not in FINAL_JOB_STATES)
_COLUMNS = {
    Order.CREATED: JobRow.created_at,
    Order.NAME: JobRow.name,
    Order.STATE: JobRow.state,
    Order.OWNER: JobRow.owner,
    Order.STARTED: JobRow.started_at,
    Order.ENDED: JobRow.ended_at,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of all jobs is asked for. `text` is part of an id, in any case; a label without a value is any of that name.

    `trouble_since`: only jobs that failed after that moment, and those under way that stall, are out of reach, or
    were started again.
    """

    project: str = ""
    text: str = ""
    owner: str = ""
    states: tuple[JobState, ...] = ()
    labels: tuple[Label, ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    trouble_since: datetime | None = None

    @property
    def is_indexed(self) -> bool:
        """Whether the jobs are counted in an index alone."""
        return not (self.text or self.labels or self.trouble_since or (self.project and self.owner))


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a line of the list needs of a job's row, and nothing else: most of the time goes into reading JSON."""

    key: int
    project: str
    job_id: str
    owner: str
    state: JobState
    labels: Mapping[str, str]
    gang: Sequence[Mapping[str, Any]]
    scale_tier: str | None
    created_at: datetime
    queued_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    waiting: str
    position: int
    verdict: Mapping[str, Any] | None
    retries_used: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The same of a run; `step`, `steps` and `metrics` are those of its primary replica."""

    number: int
    activity: str
    step: int | None
    steps: int | None
    metrics: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class Found:
    """One page of jobs, and how many there are in each state, whatever state was asked for. `more`: there are more
    jobs than were counted."""

    jobs: Sequence[JobFacts]
    counts: Mapping[JobState, int]
    more: bool

    def total(self, states: Sequence[JobState]) -> int:
        return sum(count for state, count in self.counts.items() if not states or state in states)


class JobList:
    """Questions to one consistent view of the database."""

    def __init__(self, reader: Reader) -> None:
        self._session: Session = reader.session

    def find(self, wanted: Wanted, order: Order, *, descending: bool, offset: int, limit: int) -> Found:
        common = self._common(wanted)
        if wanted.is_indexed:
            counts, more = self._counts(wanted), False
            keys = self._page(wanted, common, order, descending=descending, offset=offset, limit=limit)
        else:
            # One walk over the matches for both: the walk is what takes time.
            matches = self._matches(wanted, common, order, descending=descending)
            counts, more = Counter(state for _, state in matches), len(matches) > COUNTED
            these = [key for key, state in matches if not wanted.states or state in wanted.states]
            keys = these[offset : offset + limit]
            if more and len(keys) < limit:
                keys = self._page(wanted, common, order, descending=descending, offset=offset, limit=limit)
        rows = {row.key: row for row in self._session.execute(_FACTS.where(JobRow.key.in_(keys)))}
        return Found([_facts(rows[key]) for key in keys], counts, more)

    def in_trouble(self, since: datetime) -> int:
        """How many jobs `trouble_since` means."""
        return self._session.scalar(select(func.count()).select_from(_trouble(since).subquery())) or 0

    def projects(self) -> Sequence[str]:
        """Every project that has a job."""
        return self._distinct(JobRow.project)

    def owners(self) -> Sequence[str]:
        return [owner for owner in self._distinct(JobRow.owner) if owner]

    def newest_runs(self, keys: Sequence[int]) -> dict[int, RunFacts]:
        """The latest run of each of these jobs that has one, with its primary replica."""
        newest = (
            select(RunRow.job_key, func.max(RunRow.number).label("number"))
            .where(RunRow.job_key.in_(keys))
            .group_by(RunRow.job_key)
            .subquery()
        )
        rows = self._session.execute(
            select(
                RunRow.job_key,
                RunRow.number,
                RunRow.activity,
                ReplicaRow.step,
                ReplicaRow.steps,
                ReplicaRow.metrics,
            )
            .join(newest, and_(RunRow.job_key == newest.c.job_key, RunRow.number == newest.c.number))
            .join(ReplicaRow, and_(ReplicaRow.run_id == RunRow.run_id, ReplicaRow.position == 0))
        )
        return {key: RunFacts(*facts) for key, *facts in rows}

    def troubled(self, keys: Sequence[int]) -> dict[int, str]:
        """What is wrong with those of these jobs that are under way: `stalled` or `silent`."""
        rows = self._session.execute(
            select(RunRow.job_key, ReplicaRow.stall.is_not(None))
            .join(ReplicaRow, ReplicaRow.run_id == RunRow.run_id)
            .where(RunRow.job_key.in_(keys), RunRow.state.in_(LIVE_RUNS), _replica_in_trouble())
        )
        found: dict[int, str] = {}
        for key, stalled in rows:
            found[key] = "stalled" if stalled or found.get(key) == "stalled" else "silent"
        return found

    def _page(
        self,
        wanted: Wanted,
        common: frozenset[Label],
        order: Order,
        *,
        descending: bool,
        offset: int,
        limit: int,
    ) -> Sequence[int]:
        query = _where(select(JobRow.key), wanted, common, with_states=True)
        return self._session.scalars(_ordered(query, order, descending).offset(offset).limit(limit)).all()

    def _matches(
        self, wanted: Wanted, common: frozenset[Label], order: Order, *, descending: bool
    ) -> Sequence[tuple[int, JobState]]:
        """The keys and states of what matches but for the state, one more than are counted at most."""
        query = _where(select(JobRow.key, JobRow.state), wanted, common, with_states=False)
        rows = self._session.execute(_ordered(query, order, descending).limit(COUNTED + 1))
        return [(key, state) for key, state in rows]

    def _counts(self, wanted: Wanted) -> dict[JobState, int]:
        every = _where(select(JobRow.state, func.count()), wanted, frozenset(), with_states=False)
        query = every.group_by(JobRow.state)
        return {state: count for state, count in self._session.execute(query)}  # noqa: C416 - rows are tuples by name

    def _common(self, wanted: Wanted) -> frozenset[Label]:
        """Which of the labels that are asked for many jobs have."""
        counts = {
            label: select(func.count()).select_from(_labelled(*label).limit(_MANY).subquery())
            for label in wanted.labels
        }
        return frozenset(label for label, count in counts.items() if self._session.scalar(count) == _MANY)

    def _distinct(self, column: InstrumentedAttribute[str]) -> list[str]:
        """By leaps over an index, one for each value, and not by a walk over all jobs."""
        leaps = select(func.min(column).label("value")).cte("leaps", recursive=True)
        next_one = select(func.min(column)).where(column > leaps.c.value).scalar_subquery()
        leaps = leaps.union_all(select(next_one).where(leaps.c.value.is_not(None)))
        return [value for value in self._session.scalars(select(leaps.c.value)) if value is not None]


_FACTS = select(
    JobRow.key,
    JobRow.project,
    JobRow.job_id,
    JobRow.owner,
    JobRow.state,
    JobRow.labels,
    JobRow.gang,
    JobRow.training_input["scaleTier"].as_string().label("scale_tier"),
    JobRow.created_at,
    JobRow.queued_at,
    JobRow.started_at,
    JobRow.ended_at,
    JobRow.waiting,
    JobRow.position,
    JobRow.verdict,
    JobRow.retries_used,
)


def _facts(row: Any) -> JobFacts:
    return JobFacts(**row._mapping)


def _ordered(query: Select, order: Order, descending: bool) -> Select:  # type: ignore[type-arg]
    columns = list(dict.fromkeys((_COLUMNS[order], JobRow.created_at, JobRow.key)))
    if order in (Order.STARTED, Order.ENDED):
        query = query.where(columns[0].is_not(None))
    return query.order_by(*(column.desc() if descending else column for column in columns))


def _labelled(name: str, value: str | None) -> Select[int]:
    """The keys of the jobs with a label."""
    labelled = select(JobLabelRow.job_key).where(JobLabelRow.name == name)
    return labelled if value is None else labelled.where(JobLabelRow.value == value)


def _where(
    query: Select,  # type: ignore[type-arg]
    wanted: Wanted,
    common: frozenset[Label],
    *,
    with_states: bool,
) -> Select:  # type: ignore[type-arg]
    """`common`: labels that so many jobs have that each job is better asked for it than all who have it are listed."""
    if wanted.project:
        query = query.where(JobRow.project == wanted.project)
    if wanted.owner:
        query = query.where(JobRow.owner == wanted.owner)
    if wanted.text:
        query = query.where(JobRow.name.contains(wanted.text.lower(), autoescape=True))
    if with_states and wanted.states:
        query = query.where(JobRow.state.in_(wanted.states))
    for label in wanted.labels:
        labelled = _labelled(*label)
        if label in common:
            query = query.where(labelled.where(JobLabelRow.job_key == JobRow.key).exists())
        else:
            query = query.where(JobRow.key.in_(labelled))
    if wanted.created_after is not None:
        query = query.where(JobRow.created_at >= wanted.created_after)
    if wanted.created_before is not None:
        query = query.where(JobRow.created_at <= wanted.created_before)
    if wanted.trouble_since is not None:
        query = query.where(JobRow.key.in_(_trouble(wanted.trouble_since)))
    return query


def _trouble(since: datetime) -> CompoundSelect[tuple[int]]:
    """The keys of the jobs that want a look. Each part begins with an index that leaves few."""
    failed = select(JobRow.key).where(JobRow.ended_at >= since, JobRow.state == JobState.FAILED)
    restarted = select(JobRow.key).where(JobRow.state.in_(_UNFINISHED), JobRow.retries_used > 0)
    unwell = (
        select(JobRow.key)
        .join(RunRow, RunRow.job_key == JobRow.key)
        .join(ReplicaRow, ReplicaRow.run_id == RunRow.run_id)
        .where(JobRow.state.in_(_UNFINISHED), RunRow.state.in_(LIVE_RUNS), _replica_in_trouble())
    )
    return union(failed, restarted, unwell)


def _replica_in_trouble() -> ColumnElement[bool]:
    return or_(ReplicaRow.stall.is_not(None), ReplicaRow.state == ReplicaState.UNKNOWN)
