"""Rows of what programs log through MLflow: points of metrics, and the further runs that a program makes."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func, select, update

from trainyard_server.storage.db.base.models import JobRow, LoggedMetricsRow, TrackedRunRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer

MAX_RUNS = 1000
"""Limit of further runs of one job."""


_OWN = 0  # the number of the run that the job is; its name is the number of the job's run


class LoggedPoint(NamedTuple):
    """A value of a metric. `time_ms` is since 1970."""

    name: str
    step: int
    value: float
    time_ms: int


def points_after(reader: Reader, key: int, number: int, limit: int) -> Sequence[LoggedMetricsRow]:
    """The points that a job has logged, in the order of their numbers, from the first above `number`."""
    query = select(LoggedMetricsRow).where(LoggedMetricsRow.job_key == key, LoggedMetricsRow.number > number)
    return reader.session.scalars(query.order_by(LoggedMetricsRow.number).limit(limit)).all()


def add_points(writer: Writer, key: int, run: int, points: Sequence[LoggedPoint]) -> None:
    """Add points. The numbers of a job have no gaps and no row appears below one that was read: its row is locked."""
    _lock(writer, key)
    query = select(func.max(LoggedMetricsRow.number)).where(LoggedMetricsRow.job_key == key)
    number = (writer.session.scalar(query) or 0) + 1
    rows = [[point.name, point.step, _storable(point.value), point.time_ms] for point in points]
    writer.session.add(LoggedMetricsRow(job_key=key, number=number, run=run, points=rows))
    writer.session.flush()


def tracked_run(reader: Reader, key: int, number: int) -> TrackedRunRow | None:
    return reader.session.get(TrackedRunRow, (key, number))


def add_run(writer: Writer, key: int, name: str, now: datetime) -> TrackedRunRow | None:
    """Add a further run with a name that no other of the job has; None where it has MAX_RUNS."""
    _lock(writer, key)
    rows = writer.session.scalars(
        select(TrackedRunRow).where(TrackedRunRow.job_key == key, TrackedRunRow.number != _OWN)
    ).all()
    if len(rows) >= MAX_RUNS:
        return None
    names, base, count = {row.name for row in rows}, name, 1
    while name in names:
        count += 1
        name = f"{base}-{count}"
    row = TrackedRunRow(job_key=key, number=len(rows) + 1, name=name, status="RUNNING", started_at=now)
    writer.session.add(row)
    writer.session.flush()
    return row


def open_own(writer: Writer, key: int, run: int, now: datetime) -> bool:
    """Note that the program of a job's run has opened the run that its job is. False if it had."""
    row = writer.session.get(TrackedRunRow, (key, _OWN))
    if row is not None and row.name == str(run):
        return False
    writer.session.merge(TrackedRunRow(job_key=key, number=_OWN, name=str(run), status="RUNNING", started_at=now))
    writer.session.flush()
    return True


def set_status(writer: Writer, key: int, number: int, status: str, now: datetime) -> None:
    """Set the status of a further run; `now` is its end unless it goes on."""
    values = {"status": status, "ended_at": None if status == "RUNNING" else now}
    writer.session.execute(update(TrackedRunRow).filter_by(job_key=key, number=number).values(**values))


def _lock(writer: Writer, key: int) -> None:
    """Let other transactions that do the same wait (SQLite has one at a time)."""
    writer.session.execute(select(JobRow.key).where(JobRow.key == key).with_for_update()).one()


def _storable(value: float) -> float | str:
    """JSON has no NaN and no infinities."""
    return value if value - value == 0 else str(value)
