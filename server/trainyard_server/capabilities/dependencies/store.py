"""Dependencies of jobs, and what they are decided by."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import ForeignKey, Select, String, and_, bindparam, or_, select, update
from sqlalchemy.orm import Mapped, aliased, mapped_column

from trainyard_protocol.job.keys.dependencies import Dependency, dependency_of
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.capabilities.dependencies import rules
from trainyard_server.capabilities.dependencies.rules import Predecessor
from trainyard_server.storage.db.base.columns import AnyText, Table
from trainyard_server.storage.db.base.models import HELD, JobMetricRow, JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import JobEvents, NewJob, Writer

_MEASURED_WITHIN = timedelta(days=1)
"""After the end of a job: what could not be measured until then never is."""


class DependencyRow(Table):
    """An entry of a job's `after`. `after_key` may be of a job that was deleted since."""

    __tablename__ = "job_dependencies"

    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    after_key: Mapped[int] = mapped_column(index=True)
    entry: Mapped[str] = mapped_column(AnyText)
    metric: Mapped[str] = mapped_column(String(100))  # of its condition; "": it has none
    fulfilled: Mapped[bool] = mapped_column(default=False)

    @property
    def dependency(self) -> Dependency:
        return dependency_of(self.entry)


class Neighbour(NamedTuple):
    """A job that another one starts after, or that starts after it, by an entry of `after`; None: it was deleted."""

    dependency: Dependency
    job: JobRow | None


def hold_new(writer: Writer, jobs: Sequence[NewJob]) -> None:
    """Keep what new jobs start after, and hold them back until then. A trial waits with its study."""
    for job in jobs:
        row, after = job.row, job.parsed[0].after
        if not after or row.study_key is not None:
            continue
        dependencies = [dependency_of(entry) for entry in after]
        named = JobRow.job_id.in_([dependency.job for dependency in dependencies])
        query = select(JobRow.job_id, JobRow.key).where(JobRow.project == row.project, named)
        keys = {job_id: key for job_id, key in writer.session.execute(query)}  # noqa: C416 - rows are tuples by name
        writer.session.add_all(
            DependencyRow(
                job_key=row.key,
                position=position,
                after_key=keys[dependency.job],
                entry=entry,
                metric=dependency.condition.metric if dependency.condition is not None else "",
            )
            for position, (entry, dependency) in enumerate(zip(after, dependencies, strict=True))
        )
        writer.hold(row, rules.waits_for(dependencies), job.now)


JOB_EVENTS = JobEvents(hold_new, rows=(DependencyRow,))


def _due() -> Select[int]:
    before = aliased(JobRow)
    has_failed = before.state != JobState.SUCCEEDED
    is_complete = or_(before.measured, before.ended_at < bindparam("measured_by"))
    has_settled = and_(before.state.in_(FINAL_JOB_STATES), or_(has_failed, DependencyRow.metric == "", is_complete))
    return (
        select(DependencyRow.job_key)
        .join(JobRow, JobRow.key == DependencyRow.job_key)
        .outerjoin(before, before.key == DependencyRow.after_key)
        .where(JobRow.state == JobState.QUEUED, JobRow.waiting_kind == HELD, JobRow.key > bindparam("above"))
        .where(DependencyRow.fulfilled.is_(False), or_(before.key.is_(None), has_settled))
        .distinct()
        .order_by(DependencyRow.job_key)
        .limit(bindparam("limit"))
    )


_DUE = _due()  # built once: it is asked with each change of a job


def due(reader: Reader, now: datetime, above: int, limit: int) -> Sequence[int]:
    """Held jobs with keys above one, of which a predecessor has ended, or was deleted, since that was last looked at.
    A condition on metrics comes once these are complete."""
    given = {"measured_by": now - _MEASURED_WITHIN, "above": above, "limit": limit}
    return reader.session.scalars(_DUE, given).all()


def open_of(reader: Reader, job: JobRow) -> Sequence[DependencyRow]:
    """The dependencies of a job that are not fulfilled, in order."""
    query = select(DependencyRow).filter_by(job_key=job.key, fulfilled=False)
    return reader.session.scalars(query.order_by(DependencyRow.position)).all()


def predecessor_of(reader: Reader, row: DependencyRow, now: datetime) -> Predecessor:
    job = reader.find_job(row.after_key)
    if job is None:
        return Predecessor(None)
    is_old = job.ended_at is not None and job.ended_at < now - _MEASURED_WITHIN
    values: dict[str, float | None] = {}
    if row.metric:
        query = select(JobMetricRow.name, JobMetricRow.last).filter_by(job_key=job.key).order_by(JobMetricRow.name)
        values = {name: last for name, last in reader.session.execute(query)}  # noqa: C416 - rows are tuples by name
    return Predecessor(job.state, job.measured or is_old, values.get(row.metric), tuple(values))


def mark_fulfilled(writer: Writer, row: DependencyRow) -> None:
    writer.session.execute(
        update(DependencyRow).filter_by(job_key=row.job_key, position=row.position).values(fulfilled=True)
    )


def predecessors(reader: Reader, job: JobRow) -> Sequence[Neighbour]:
    """The jobs that a job starts after, in the order of its entries; of a trial those of its study."""
    query = select(DependencyRow, JobRow).outerjoin(JobRow, JobRow.key == DependencyRow.after_key)
    rows = reader.session.execute(query.filter_by(job_key=job.study_key or job.key).order_by(DependencyRow.position))
    return [Neighbour(row.dependency, before) for row, before in rows]


def followers(reader: Reader, keys: Collection[int]) -> Sequence[Neighbour]:
    """The jobs that start after any of these, the oldest first."""
    query = select(DependencyRow, JobRow).join(JobRow, JobRow.key == DependencyRow.job_key)
    query = query.where(DependencyRow.after_key.in_(keys)).order_by(JobRow.key, DependencyRow.position)
    return [Neighbour(row.dependency, follower) for row, follower in reader.session.execute(query)]
