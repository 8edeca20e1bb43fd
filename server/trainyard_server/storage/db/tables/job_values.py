"""Parameters and metrics of jobs: to find and to sort jobs by, and to show them beside each other."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, bindparam, delete, exists, func, or_, select

from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.job.parameters import MAX_PARAMETER_NAME, MAX_PARAMETER_VALUE, number_of
from trainyard_protocol.states import JobState
from trainyard_server.domain.access.permissions import Visible
from trainyard_server.domain.metrics.sources import MetricSource
from trainyard_server.domain.metrics.summary import MetricSummary
from trainyard_server.storage.db.base.models import JobMetricRow, JobParameterRow, JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer

MAX_OF_A_JOB = 1000
"""Limit of the parameters of one job, and of its metrics."""

_NEWEST = 200  # jobs whose names are offered

# Built once: what is asked about each job.
_METRICS = select(JobMetricRow).where(JobMetricRow.job_key.in_(bindparam("keys", expanding=True)))
_METRIC_NAMES = select(JobMetricRow.name).where(JobMetricRow.job_key == bindparam("key"))
_OF_JOB = (RunRow.job_key == bindparam("key"), ReplicaRow.run_id == RunRow.run_id)
_CUT_LOGS = (
    select(ReplicaRow.run_id)
    .where(*_OF_JOB, or_(ReplicaRow.log_kept.is_not(None), ReplicaRow.log_complete.is_(False)))
    .limit(1)
)
_PRIMARY_DIGEST = (
    select(ReplicaRow.run_id, ReplicaRow.metrics)
    .where(*_OF_JOB, ReplicaRow.task == PRIMARY.name)
    .order_by(RunRow.number.desc())
    .limit(1)
)


class JobValues(NamedTuple):
    """The parameters and the metrics of a job, by name."""

    parameters: Mapping[str, str]
    metrics: Mapping[str, MetricSummary]


class MeasuredJob(NamedTuple):
    """A job whose event files are to be read."""

    key: int
    project: str
    job_id: str
    is_trial: bool


def values_of(
    reader: Reader, keys: Collection[int], parameters: Collection[str] | None, metrics: Collection[str] | None
) -> dict[int, JobValues]:
    """The named parameters and metrics of jobs; None for all of them."""
    own: dict[int, dict[str, str]] = {key: {} for key in keys}
    measured: dict[int, dict[str, MetricSummary]] = {key: {} for key in keys}
    if parameters is None or parameters:
        columns = (JobParameterRow.job_key, JobParameterRow.name, JobParameterRow.value)
        query = select(*columns).where(JobParameterRow.job_key.in_(keys)).order_by(JobParameterRow.name)
        if parameters is not None:
            query = query.where(JobParameterRow.name.in_(parameters))
        for key, name, value in reader.session.execute(query):
            own[key][name] = value
    if metrics is None or metrics:
        of_metrics = select(JobMetricRow.job_key, JobMetricRow.name, *_SUMMARY).where(JobMetricRow.job_key.in_(keys))
        if metrics is not None:
            of_metrics = of_metrics.where(JobMetricRow.name.in_(metrics))
        for row in reader.session.execute(of_metrics.order_by(JobMetricRow.name)):
            measured[row.job_key][row.name] = _summary(row)
    return {key: JobValues(own[key], measured[key]) for key in own}


def add_parameters(writer: Writer, key: int, parameters: Mapping[str, str]) -> int:
    """Add or replace parameters of a job, those that it has room for. Returns the number of those left out."""
    present = {row.name: row for row in writer.session.scalars(select(JobParameterRow).filter_by(job_key=key))}
    room, left_out = MAX_OF_A_JOB - len(present), 0
    for name, value in parameters.items():
        cut = value[:MAX_PARAMETER_VALUE]
        if row := present.get(name):
            row.value, row.number = cut, number_of(cut)
        elif room > 0 and 0 < len(name) <= MAX_PARAMETER_NAME:
            writer.session.add(JobParameterRow(job_key=key, name=name, value=cut, number=number_of(cut)))
            room -= 1
        else:
            left_out += 1
    writer.session.flush()
    writer.changes.jobs.add(key)
    return left_out


def record(writer: Writer, metrics: Mapping[int, Mapping[str, MetricSummary]], *, whole: bool = False) -> None:
    """Record what jobs have measured. `whole`: it is all that a job has; else it is joined with what is recorded."""
    keys = list(metrics)
    rows = writer.session.scalars(_METRICS, {"keys": keys}).all()
    present = {(row.job_key, row.name): row for row in rows}
    counts = dict.fromkeys(keys, 0)
    for row in rows:
        counts[row.job_key] += 1
    for key, summaries in metrics.items():
        for name, summary in summaries.items():
            before = present.get((key, name))
            if before is None and counts[key] >= MAX_OF_A_JOB:
                continue
            row = before or JobMetricRow(job_key=key, name=name)
            if before is None:
                counts[key] += 1
                writer.session.add(row)
            elif not whole:
                summary = _summary(before).joined(summary)
            row.step, row.last, row.best = summary.step, summary.last, summary.best(name)
            row.lowest, row.highest, row.source = summary.lowest, summary.highest, summary.source
            row.time_ms, row.run = summary.time_ms, summary.run
    writer.session.flush()


def to_measure(
    reader: Reader, ended_after: datetime, complete_by: datetime, limit: int
) -> tuple[Sequence[MeasuredJob], Sequence[MeasuredJob]]:
    """Jobs that run, and those that have ended since a time and are not measured, at most `limit` of each. Those whose
    logs are not complete come once they have ended before `complete_by`."""
    columns = (JobRow.key, JobRow.project, JobRow.job_id, JobRow.study_key.is_not(None))
    running = select(*columns).where(JobRow.state == JobState.RUNNING).order_by(JobRow.key.desc()).limit(limit)
    open_log = exists().where(
        RunRow.job_key == JobRow.key, ReplicaRow.run_id == RunRow.run_id, ReplicaRow.log_complete.is_(False)
    )
    ended = select(*columns).where(JobRow.measured.is_(False), JobRow.ended_at >= ended_after)
    ended = ended.where(or_(JobRow.ended_at < complete_by, ~open_log))
    of_each = (running, ended.order_by(JobRow.ended_at.desc()).limit(limit))
    first, second = ([MeasuredJob(*row) for row in reader.session.execute(query)] for query in of_each)
    return first, second


def lacks_points(reader: Reader, key: int) -> bool:
    """Whether a log of the job, or what it logged, is stored in part: it does not have all that the job measured."""
    return reader.session.scalar(_CUT_LOGS, {"key": key}) is not None


class PrimaryDigest(NamedTuple):
    """The digest of the primary replica of a run, `CurveSummary.json`."""

    run_id: str
    digest: Mapping[str, Any] | None


def primary_digest(reader: Reader, key: int) -> PrimaryDigest | None:
    """The digest of the job's latest run; None of a job that never ran."""
    row = reader.session.execute(_PRIMARY_DIGEST, {"key": key}).first()
    return None if row is None else PrimaryDigest(*row)


def mark_measured(writer: Writer, key: int) -> None:
    writer.mark_measured(key)


def settle(writer: Writer, key: int, metrics: Mapping[str, MetricSummary]) -> None:
    """Record all that an ended job has measured, in place of what was recorded while it ran."""
    names = set(writer.session.scalars(_METRIC_NAMES, {"key": key}))
    if gone := names - set(metrics):
        writer.session.execute(delete(JobMetricRow).where(JobMetricRow.job_key == key, JobMetricRow.name.in_(gone)))
    record(writer, {key: metrics}, whole=True)


class NumberedRun(NamedTuple):
    """A run with the key of its job and its number there."""

    run_id: str
    job: int
    number: int


def runs_of(reader: Reader, run_ids: Collection[str]) -> list[NumberedRun]:
    """These runs, in the order of their numbers."""
    columns = (RunRow.run_id, RunRow.job_key, RunRow.number)
    rows = reader.session.execute(select(*columns).where(RunRow.run_id.in_(run_ids)).order_by(RunRow.number))
    return [NumberedRun(*row) for row in rows]


def names(reader: Reader, visible: Visible, limit: int) -> tuple[list[str], list[str]]:
    """The most frequent names of parameters and of metrics among the newest jobs of visible projects."""
    newest = select(JobRow.key).order_by(JobRow.key.desc()).limit(_NEWEST)
    if visible is not None:
        newest = newest.where(JobRow.project.in_(visible))
    keys = reader.session.scalars(newest).all()
    query = select(JobParameterRow.name).where(JobParameterRow.job_key.in_(keys)).group_by(JobParameterRow.name)
    parameters = reader.session.scalars(query.order_by(func.count().desc(), JobParameterRow.name).limit(limit))
    return list(parameters), metric_names(reader, keys, limit)


def metric_names(reader: Reader, keys: Collection[int], limit: int) -> list[str]:
    """The names of the metrics that most of these jobs have."""
    query = select(JobMetricRow.name).where(JobMetricRow.job_key.in_(keys)).group_by(JobMetricRow.name)
    return list(reader.session.scalars(query.order_by(func.count().desc(), JobMetricRow.name).limit(limit)))


_PROGRAM = ("pythonModule", "packageUris", "masterConfig")


class JobResult(NamedTuple):
    """The best value of a metric of a job, and those parts of its training input that identify its program."""

    key: int
    job_id: str
    best: float
    training_input: Mapping[str, Any]


def results_of(reader: Reader, project: str, metric: str, limit: int) -> list[JobResult]:
    """The results of those of the newest jobs of a project that have the metric."""
    newest = select(JobRow.key).where(JobRow.project == project, JobRow.study_key.is_(None))
    parts = [JobRow.training_input[name] for name in _PROGRAM]
    query = (
        select(JobRow.key, JobRow.job_id, JobMetricRow.best, *parts)
        .join(JobMetricRow, JobMetricRow.job_key == JobRow.key)
        .where(JobRow.key.in_(newest.order_by(JobRow.key.desc()).limit(limit)))
        .where(JobMetricRow.name == metric, JobMetricRow.best.is_not(None))
    )
    rows = reader.session.execute(query)
    return [JobResult(key, name, best, dict(zip(_PROGRAM, program, strict=True))) for key, name, best, *program in rows]


def differing_parameters(reader: Reader, keys: Collection[int], limit: int) -> list[str]:
    """The names of parameters in which these jobs differ, those that most of them have first."""
    query = select(JobParameterRow.name).where(JobParameterRow.job_key.in_(keys)).group_by(JobParameterRow.name)
    differing = query.having(func.count(JobParameterRow.value.distinct()) > 1)
    return list(reader.session.scalars(differing.order_by(func.count().desc(), JobParameterRow.name).limit(limit)))


_SUMMARY = (
    *(JobMetricRow.step, JobMetricRow.last, JobMetricRow.lowest, JobMetricRow.highest),
    *(JobMetricRow.source, JobMetricRow.time_ms, JobMetricRow.run),
)


def _summary(row: JobMetricRow | Row[*tuple[Any, ...]]) -> MetricSummary:
    return MetricSummary(row.step, row.last, row.lowest, row.highest, MetricSource(row.source), row.time_ms, row.run)
