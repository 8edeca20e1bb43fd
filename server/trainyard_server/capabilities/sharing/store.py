"""Usage records of runs, for reports and for fair share."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from sqlalchemy import Select, exists, func, select

from trainyard_protocol.states import RunState
from trainyard_server.capabilities.sharing.tables import UsageRow
from trainyard_server.domain.access.permissions import Visible
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer

AT_ONCE = 200
"""Runs that are recorded together."""

_LATE = timedelta(hours=1)
"""A run with an earlier end may be committed so much later."""


class UnrecordedRun(NamedTuple):
    """A run that has ended, or a part of it, without a usage record."""

    run: RunRow
    job: JobRow
    replicas: Sequence[ReplicaRow]


class UsageOfDay(NamedTuple):
    """Usage of an owner in a project, of runs that ended on one day."""

    project: str
    owner: str
    day: str
    cpu_s: float
    gpu_s: float


class RecordedUsage(NamedTuple):
    """The values of a record that reports add up."""

    project: str
    owner: str
    labels: dict[str, str]
    day: str
    cpu_s: float
    gpu_s: float
    idle_gpu_s: float | None
    wait_s: float | None
    has_failed: bool


def unrecorded(reader: Reader) -> Sequence[UnrecordedRun]:
    """The oldest runs that have ended without a record."""
    newest = reader.session.scalar(select(func.max(UsageRow.ended_at)))
    query = _ended().order_by(RunRow.ended_at).limit(AT_ONCE)
    return _with_replicas(reader, query if newest is None else query.where(RunRow.ended_at >= newest - _LATE))


def unrecorded_of(reader: Reader, job_keys: Collection[int]) -> Sequence[UnrecordedRun]:
    """The runs of jobs that have ended without a record."""
    return _with_replicas(reader, _ended().where(RunRow.job_key.in_(job_keys)))


def live(reader: Reader) -> Sequence[UnrecordedRun]:
    """The runs that have not ended."""
    query = select(RunRow, JobRow).join(JobRow, JobRow.key == RunRow.job_key).where(RunRow.state != RunState.ENDED)
    return _with_replicas(reader, query)


def add(writer: Writer, rows: Collection[UsageRow]) -> None:
    writer.session.add_all(rows)
    writer.session.flush()


def by_day(reader: Reader, since: str) -> Sequence[UsageOfDay]:
    """The usage of each owner and project by day, from a day on."""
    row = UsageRow
    group = (row.project, row.owner, row.day)
    query = select(*group, func.sum(row.cpu_s), func.sum(row.gpu_s)).where(row.day >= since).group_by(*group)
    return [UsageOfDay(*values) for values in reader.session.execute(query)]


def records(reader: Reader, visible: Visible, first_day: str, last_day: str) -> Iterator[RecordedUsage]:
    """The records of visible projects between two days, both included."""
    row = UsageRow
    columns = (row.project, row.owner, row.labels, row.day)
    amounts = (row.cpu_s, row.gpu_s, row.idle_gpu_s, row.wait_s, row.has_failed)
    query = select(*columns, *amounts).where(row.day >= first_day, row.day <= last_day)
    if visible is not None:
        query = query.where(row.project.in_(visible))
    for values in reader.session.execute(query.execution_options(yield_per=1000)):
        yield RecordedUsage._make(values)


def _ended() -> Select[RunRow, JobRow]:
    recorded = exists().where(UsageRow.run_id == RunRow.run_id)
    query = select(RunRow, JobRow).join(JobRow, JobRow.key == RunRow.job_key)
    return query.where(RunRow.ended_at.is_not(None), RunRow.state == RunState.ENDED, ~recorded)


def _with_replicas(reader: Reader, query: Select[RunRow, JobRow]) -> Sequence[UnrecordedRun]:
    rows = reader.session.execute(query).all()
    replicas = reader.replicas_by_run(run.run_id for run, _ in rows)
    return [UnrecordedRun(run, job, replicas[run.run_id]) for run, job in rows]


def day_of(time: datetime) -> str:
    """The day of a time in UTC: 2026-11-28."""
    return time.strftime("%Y-%m-%d")
