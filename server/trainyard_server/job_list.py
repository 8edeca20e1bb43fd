"""Which jobs a list shows, and in which order: the SQL of it, over all projects.

The jobs of a page are found in indexes that cover the question, and only those are read, so that a page takes about as
long among fifty thousand jobs as among fifty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState
from trainyard_server.schema import JobLabelRow, JobRow, ReplicaRow, RunRow
from trainyard_server.store import LIVE_RUNS, Reader


class Order(StrEnum):
    """What a list is sorted by; where that is equal, the newest job comes first."""

    CREATED = "created"
    NAME = "name"
    STATE = "state"
    OWNER = "owner"
    STARTED = "started"
    ENDED = "ended"


_COLUMNS = {
    Order.NAME: JobRow.job_id,
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
    labels: tuple[tuple[str, str | None], ...] = ()
    created_after: datetime | None = None
    created_before: datetime | None = None
    trouble_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One page of jobs, and how many there are in each state, whatever state was asked for."""

    jobs: Sequence[JobRow]
    counts: Mapping[JobState, int]

    def total(self, states: Sequence[JobState]) -> int:
        return sum(count for state, count in self.counts.items() if not states or state in states)


class JobList:
    """Questions to one consistent view of the database."""

    def __init__(self, reader: Reader) -> None:
        self._session: Session = reader.session

    def find(self, wanted: Wanted, order: Order, *, descending: bool, offset: int, limit: int) -> Found:
        keys = self._page(wanted, order, descending=descending, offset=offset, limit=limit)
        rows = {job.key: job for job in self._session.scalars(select(JobRow).where(JobRow.key.in_(keys)))}
        return Found([rows[key] for key in keys], self._counts(wanted))

    def in_trouble(self, since: datetime) -> int:
        """How many jobs `trouble_since` means."""
        return self._session.scalar(select(func.count()).select_from(JobRow).where(_trouble(since))) or 0

    def projects(self) -> Sequence[str]:
        """Every project that has a job."""
        return self._distinct(JobRow.project)

    def owners(self) -> Sequence[str]:
        return [owner for owner in self._distinct(JobRow.owner) if owner]

    def newest_runs(self, keys: Sequence[int]) -> dict[int, tuple[RunRow, ReplicaRow]]:
        """The latest run of each of these jobs that has one, and its primary replica."""
        newest = (
            select(RunRow.job_key, func.max(RunRow.number).label("number"))
            .where(RunRow.job_key.in_(keys))
            .group_by(RunRow.job_key)
            .subquery()
        )
        rows = self._session.execute(
            select(RunRow, ReplicaRow)
            .join(newest, and_(RunRow.job_key == newest.c.job_key, RunRow.number == newest.c.number))
            .join(ReplicaRow, and_(ReplicaRow.run_id == RunRow.run_id, ReplicaRow.position == 0))
            .options(undefer(ReplicaRow.metrics))
        )
        return {run.job_key: (run, replica) for run, replica in rows}

    def troubled(self, keys: Sequence[int]) -> dict[int, str]:
        """What is wrong with those of these jobs that are under way: `stalled` or `silent`."""
        rows = self._session.execute(
            select(RunRow.job_key, ReplicaRow.stall.is_not(None), ReplicaRow.state)
            .join(ReplicaRow, ReplicaRow.run_id == RunRow.run_id)
            .where(RunRow.job_key.in_(keys), RunRow.state.in_(LIVE_RUNS), _replica_in_trouble())
        )
        found: dict[int, str] = {}
        for key, stalled, _state in rows:
            found[key] = "stalled" if stalled or found.get(key) == "stalled" else "silent"
        return found

    def _page(
        self, wanted: Wanted, order: Order, *, descending: bool, offset: int, limit: int
    ) -> Sequence[int]:
        query = _where(select(JobRow.key), wanted, with_states=True)
        if order is Order.CREATED:
            query = query.order_by(JobRow.key.desc() if descending else JobRow.key)
        else:
            column = _COLUMNS[order]
            if order in (Order.STARTED, Order.ENDED):
                query = query.where(column.is_not(None))
            query = query.order_by(
                column.desc() if descending else column, JobRow.key.desc() if descending else JobRow.key
            )
        return self._session.scalars(query.offset(offset).limit(limit)).all()

    def _counts(self, wanted: Wanted) -> dict[JobState, int]:
        query = _where(select(JobRow.state, func.count()), wanted, with_states=False).group_by(JobRow.state)
        return {state: count for state, count in self._session.execute(query)}  # noqa: C416 - rows are tuples by name

    def _distinct(self, column: InstrumentedAttribute[str]) -> list[str]:
        """By leaps over an index, one for each value, and not by a walk over all jobs."""
        values: list[str] = []
        while True:
            query = select(func.min(column))
            found = self._session.scalar(query.where(column > values[-1]) if values else query)
            if found is None:
                return values
            values.append(found)


def _where(query: Select, wanted: Wanted, *, with_states: bool) -> Select:  # type: ignore[type-arg]
    if wanted.project:
        query = query.where(JobRow.project == wanted.project)
    if wanted.owner:
        query = query.where(JobRow.owner == wanted.owner)
    if wanted.text:
        escaped = wanted.text.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        query = query.where(func.lower(JobRow.job_id).like(f"%{escaped}%", escape="\\"))
    if with_states and wanted.states:
        query = query.where(JobRow.state.in_(wanted.states))
    for name, value in wanted.labels:
        labelled = select(JobLabelRow.job_key).where(JobLabelRow.name == name)
        if value is not None:
            labelled = labelled.where(JobLabelRow.value == value)
        query = query.where(JobRow.key.in_(labelled))
    if wanted.created_after is not None:
        query = query.where(JobRow.created_at >= wanted.created_after)
    if wanted.created_before is not None:
        query = query.where(JobRow.created_at <= wanted.created_before)
    if wanted.trouble_since is not None:
        query = query.where(_trouble(wanted.trouble_since))
    return query


def _trouble(since: datetime) -> ColumnElement[bool]:
    unwell = (
        select(RunRow.job_key)
        .join(ReplicaRow, ReplicaRow.run_id == RunRow.run_id)
        .where(RunRow.state.in_(LIVE_RUNS), _replica_in_trouble())
    )
    restarted = and_(JobRow.state.not_in(FINAL_JOB_STATES), JobRow.retries_used > 0)
    failed = and_(JobRow.state == JobState.FAILED, JobRow.ended_at >= since)
    return or_(failed, restarted, JobRow.key.in_(unwell))


def _replica_in_trouble() -> ColumnElement[bool]:
    return or_(ReplicaRow.stall.is_not(None), ReplicaRow.state == ReplicaState.UNKNOWN)
