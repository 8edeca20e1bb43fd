"""Rows of what programs log through MLflow: points of metrics, the further runs that a program makes, and the values of
runs: tags, parameters, inputs."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import case, delete, func, insert, select, update

from trainyard_server.capabilities.tracking.tables import (
    LoggedMetricsRow,
    LoggedModelRow,
    TrackedRunRow,
    TrackedValueRow,
)
from trainyard_server.storage.db.base.models import JobMetricRow, JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import JobEvents, Writer

LOST_POINTS = "disk"
"""The note of a job whose points were not stored."""

MAX_RUNS = 1000
"""Limit of further runs of one job."""

MAX_OF_A_RUN = 1000
"""Limit of the values of one kind that one run has."""

MAX_VALUES = 20_000
"""Limit of the values of one job."""

MAX_CHARACTERS = 4 * 2**20
"""Limit of the characters of all values of one job."""

MAX_KEY = 250
"""Limit of the characters of a value's name, as MLflow's server has it."""

POINTS_OF_A_ROW = 1000

OWN = 0
"""The number of the run that the job is. The name of its row is the number of the job's run that has opened it."""


JOB_EVENTS = JobEvents(rows=(LoggedMetricsRow, TrackedRunRow, TrackedValueRow, LoggedModelRow))


class ValueKind(StrEnum):
    TAG = "tag"
    PARAM = "param"
    INPUT = "input"
    """A data set, as MLflow's JSON; the next three have what it is searched by, under the same name."""
    DATASET_NAME = "dataset.name"
    DATASET_DIGEST = "dataset.digest"
    DATASET_CONTEXT = "dataset.context"
    MODEL_INPUT = "model.input"
    MODEL_OUTPUT = "model.output"
    NOTE = "note"
    """What cannot be kept, and the job's log says so."""
    THINNING = "thinning"
    """The number of the last row of points that was thinned."""


RunNumber = tuple[int, int]
"""The key of a job, and the number of a run of it: 0 for its own."""

RunValues = Mapping[ValueKind, Mapping[str, str]]
"""The values of a run, by kind and name."""


class LoggedPoint(NamedTuple):
    """A value of a metric. `time_ms` is since 1970."""

    name: str
    step: int
    value: float
    time_ms: int


StoredPoint = list[str | int | float]
"""A point as its row has it: a value that is not finite is a text."""


def points_after(reader: Reader, key: int, number: int, limit: int) -> Sequence[LoggedMetricsRow]:
    """The points that a job has logged, in the order of their numbers, from the first above `number`."""
    query = select(LoggedMetricsRow).where(LoggedMetricsRow.job_key == key, LoggedMetricsRow.number > number)
    return reader.session.scalars(query.order_by(LoggedMetricsRow.number).limit(limit)).all()


def newest_rows(reader: Reader, key: int, run: int, limit: int) -> Sequence[LoggedMetricsRow]:
    """The newest points that a run of a job has logged."""
    query = select(LoggedMetricsRow).where(LoggedMetricsRow.job_key == key, LoggedMetricsRow.run == run)
    return reader.session.scalars(query.order_by(LoggedMetricsRow.number.desc()).limit(limit)).all()


def add_points(writer: Writer, key: int, run: int, points: Sequence[LoggedPoint]) -> None:
    """Add points. No row appears below one that was read: the row of the job is locked."""
    lock(writer, key)
    query = select(func.max(LoggedMetricsRow.number)).where(LoggedMetricsRow.job_key == key)
    number = (writer.session.scalar(query) or 0) + 1
    rows = [[point.name, point.step, _storable(point.value), point.time_ms] for point in points]
    writer.session.execute(insert(LoggedMetricsRow).values(job_key=key, number=number, run=run, points=rows))


def replace_points(
    writer: Writer, key: int, run: int, numbers: Sequence[int], points: Sequence[Sequence[StoredPoint]]
) -> None:
    """Replace rows by fewer ones. They have the highest of the numbers: who has read some of the rows reads all points
    of the others, and some again."""
    rows = (
        LoggedMetricsRow.job_key == key,
        LoggedMetricsRow.number >= numbers[0],
        LoggedMetricsRow.number <= numbers[-1],
    )
    writer.session.execute(delete(LoggedMetricsRow).where(*rows).execution_options(synchronize_session=False))
    kept = numbers[len(numbers) - len(points) :]
    values = [
        {"job_key": key, "number": number, "run": run, "points": part}
        for number, part in zip(kept, points, strict=True)
    ]
    writer.session.execute(insert(LoggedMetricsRow), values)


def logged_counts(reader: Reader, key: int) -> dict[str, int]:
    """The metrics of a job, each with the number of its points that are stored."""
    query = select(JobMetricRow.name, JobMetricRow.logged).where(JobMetricRow.job_key == key)
    return {row.name: row.logged for row in reader.session.execute(query)}


def set_counts(writer: Writer, key: int, counts: Mapping[str, int]) -> None:
    """Record the numbers of stored points of these metrics."""
    rows = [{"job_key": key, "name": name, "logged": max(0, count)} for name, count in counts.items()]
    writer.session.execute(update(JobMetricRow), rows)  # by the primary key, in one statement


def tracked_run(reader: Reader, key: int, number: int) -> TrackedRunRow | None:
    return reader.session.get(TrackedRunRow, (key, number))


def further_runs(reader: Reader, keys: Collection[int]) -> dict[int, list[TrackedRunRow]]:
    """The further runs of each of these jobs, deleted ones among them."""
    query = select(TrackedRunRow).where(TrackedRunRow.job_key.in_(keys), TrackedRunRow.number != OWN)
    runs: dict[int, list[TrackedRunRow]] = {key: [] for key in keys}
    for row in reader.session.scalars(query.order_by(TrackedRunRow.number)):
        runs[row.job_key].append(row)
    return runs


def add_run(writer: Writer, key: int, name: str, now: datetime) -> TrackedRunRow | None:
    """Add a further run with a name that no other of the job has; None where it has MAX_RUNS."""
    lock(writer, key)
    of_job = select(TrackedRunRow.name).where(TrackedRunRow.job_key == key, TrackedRunRow.number != OWN)
    names = set(writer.session.scalars(of_job))
    if len(names) >= MAX_RUNS:
        return None
    base, count = name, 1
    while name in names:
        count += 1
        name = f"{base}-{count}"
    row = TrackedRunRow(job_key=key, number=len(names) + 1, name=name, status="RUNNING", started_at=now)
    writer.session.add(row)
    writer.session.flush()
    return row


def open_own(writer: Writer, key: int, run: int, now: datetime) -> bool:
    """Note that the program of a job's run has opened the run that its job is. False if it had."""
    row = writer.session.get(TrackedRunRow, (key, OWN))
    if row is not None and row.name == str(run):
        return False
    writer.session.merge(TrackedRunRow(job_key=key, number=OWN, name=str(run), status="RUNNING", started_at=now))
    writer.session.flush()
    return True


def set_status(row: TrackedRunRow, status: str, ended_at: datetime) -> None:
    """Set the status of a further run; `ended_at` is its end unless it goes on."""
    row.status = status
    row.ended_at = None if status in ("RUNNING", "SCHEDULED") else ended_at


def values(reader: Reader, runs: Collection[RunNumber]) -> dict[RunNumber, dict[ValueKind, dict[str, str]]]:
    """The values of these runs, without notes."""
    found: dict[RunNumber, dict[ValueKind, dict[str, str]]] = {run: {} for run in runs}
    columns = (TrackedValueRow.job_key, TrackedValueRow.number, TrackedValueRow.kind, TrackedValueRow.name)
    shown = [kind for kind in ValueKind if kind not in (ValueKind.NOTE, ValueKind.THINNING)]
    for key in {key for key, _ in runs}:
        numbers = [number for job, number in runs if job == key]
        query = select(*columns, TrackedValueRow.value).where(
            TrackedValueRow.job_key == key, TrackedValueRow.number.in_(numbers), TrackedValueRow.kind.in_(shown)
        )
        for _, number, kind, name, value in reader.session.execute(query.order_by(TrackedValueRow.name)):
            found[key, number].setdefault(ValueKind(kind), {})[name] = value
    return found


def value(reader: Reader, key: int, number: int, kind: ValueKind, name: str) -> TrackedValueRow | None:
    return reader.session.get(TrackedValueRow, (key, number, kind.value, name))


def named_values(
    reader: Reader, key: int, number: int, kind: ValueKind, names: Collection[str]
) -> dict[str, TrackedValueRow]:
    """Those of the named values that the run has."""
    query = select(TrackedValueRow).where(
        TrackedValueRow.job_key == key,
        TrackedValueRow.number == number,
        TrackedValueRow.kind == kind.value,
        TrackedValueRow.name.in_(list(names)),
    )
    return {row.name: row for row in reader.session.scalars(query)}


def set_values(writer: Writer, key: int, number: int, run: int, kind: ValueKind, given: Mapping[str, str]) -> list[str]:
    """Set values of a run, those that there is room for. Returns the names of those left out."""
    if not given:
        return []
    present = named_values(writer, key, number, kind, given)
    of_run, of_job, characters = _sizes(writer, key, number, kind)
    left_out = []
    for name, text in given.items():
        row = present.get(name)
        more = len(text) - (len(row.value) if row is not None else 0)
        has_room = row is not None or (of_run < MAX_OF_A_RUN and of_job < MAX_VALUES)
        if not has_room or (more > 0 and characters + more > MAX_CHARACTERS):
            left_out.append(name)
            continue
        characters += more
        if row is not None:
            row.value, row.run = text, run
        else:
            of_run, of_job = of_run + 1, of_job + 1
            added = TrackedValueRow(job_key=key, number=number, kind=kind.value, name=name, value=text, run=run)
            writer.session.add(added)
    writer.session.flush()
    return left_out


def has_lost_points(reader: Reader, key: int) -> bool:
    """Whether points of the job were not stored, for want of room."""
    return value(reader, key, OWN, ValueKind.NOTE, LOST_POINTS) is not None


def set_mark(writer: Writer, key: int, kind: ValueKind, name: str, text: str) -> bool:
    """Set a value of the service's own, beside all limits. False if the job had it."""
    row = value(writer, key, OWN, kind, name)
    if row is not None:
        is_new = row.value != text
        row.value = text
    else:
        is_new = True
        writer.session.add(TrackedValueRow(job_key=key, number=OWN, kind=kind.value, name=name, value=text, run=0))
    writer.session.flush()
    return is_new


def delete_value(writer: Writer, key: int, number: int, kind: ValueKind, name: str) -> bool:
    """Delete a value. False if there is none."""
    row = value(writer, key, number, kind, name)
    if row is None:
        return False
    writer.session.delete(row)
    writer.session.flush()
    return True


def lock(writer: Writer, key: int) -> None:
    """Let other transactions that do the same wait (SQLite has one at a time)."""
    writer.session.execute(select(JobRow.key).where(JobRow.key == key).with_for_update()).one()


def _sizes(reader: Reader, key: int, number: int, kind: ValueKind) -> tuple[int, int, int]:
    """The number of values of the run of that kind, and of the job, and the characters of these."""
    is_of_run = (TrackedValueRow.number == number) & (TrackedValueRow.kind == kind.value)
    columns = (
        func.coalesce(func.sum(case((is_of_run, 1), else_=0)), 0),
        func.count(),
        func.coalesce(func.sum(func.length(TrackedValueRow.value)), 0),
    )
    of_run, of_job, characters = reader.session.execute(select(*columns).where(TrackedValueRow.job_key == key)).one()
    return of_run, of_job, characters


def _storable(value: float) -> float | str:
    """JSON has no NaN and no infinities."""
    return value if value - value == 0 else str(value)
