"""Studies and trials: their rows beside those of their jobs."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, NamedTuple

from sqlalchemy import and_, case, delete, func, or_, select, update
from sqlalchemy.orm import aliased, load_only, undefer

from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.job.hyperparameters import MeasurementSelection
from trainyard_protocol.states import JobState
from trainyard_server.domain.tuning.measurements import Measurement, Report, best, finite, names_in
from trainyard_server.domain.tuning.study import (
    ENDED_BY_ITSELF,
    StudySnapshot,
    TrialPhase,
    TrialSnapshot,
    maximizes,
    trial_state,
)
from trainyard_server.domain.tuning.trial_input import trial_id, trial_input
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow, StudyRow, TrialRow
from trainyard_server.storage.db.queries.reader import UNFINISHED_JOBS, Reader
from trainyard_server.storage.db.repository import Event, Writer


class JobKind(NamedTuple):
    """Whether a job is a study, and of a trial the key of its study."""

    is_study: bool
    study_key: int | None


_FAR = datetime(9999, 1, 1, tzinfo=UTC)

_TRIAL_COLUMNS = (
    TrialRow.number,
    TrialRow.job_key.label("key"),
    JobRow.job_id,
    JobRow.state.label("job_state"),
    TrialRow.parameters,
    JobRow.created_at,
    JobRow.started_at,
    JobRow.ended_at,
    JobRow.waiting,
    JobRow.retries_used,
    TrialRow.logged,
    TrialRow.stopped_early,
    TrialRow.step,
    TrialRow.value,
    JobRow.error_message.label("error"),
)


def kind_of(reader: Reader, key: int) -> JobKind:
    job = reader.known_job(key)
    if job is not None:
        return JobKind(job.is_study, job.study_key)
    query = (
        select(StudyRow.job_key, JobRow.study_key)
        .select_from(JobRow)
        .outerjoin(StudyRow, StudyRow.job_key == JobRow.key)
        .where(JobRow.key == key)
    )
    row = reader.session.execute(query).first()
    return JobKind(False, None) if row is None else JobKind(row[0] is not None, row[1])


def unfinished(reader: Reader) -> Sequence[int]:
    """The keys of studies that have not ended, the oldest first."""
    query = select(StudyRow.job_key).join(JobRow, JobRow.key == StudyRow.job_key)
    return reader.session.scalars(query.where(JobRow.state.in_(UNFINISHED_JOBS)).order_by(StudyRow.job_key)).all()


def snapshot(
    reader: Reader, key: int, *, trials: bool = True, measurements: bool | None = None
) -> StudySnapshot | None:
    """The study with its `trials`; None if it was deleted. `measurements`: with those of its trials, None: only if the
    study stops trials early. Raises InvalidArgument or KeyError for a row that cannot be parsed."""
    study, job = reader.session.get(StudyRow, key), reader.find_job(key)
    if study is None or job is None:
        return None
    spec = reader.job_input(job)[0].hyperparameters
    if spec is None:
        raise KeyError("hyperparameters")
    with_measurements = spec.stops_early is not None if measurements is None else measurements
    return StudySnapshot(
        key=key,
        project=job.project,
        job_id=job.job_id,
        state=job.state,
        spec=spec,
        seed=study.seed,
        trials=_trials(reader, key, with_measurements) if trials else (),
        past=tuple((dict(parameters), float(value)) for parameters, value in study.past),
        metric=study.metric,
        failure=study.failure,
        exhausted=study.exhausted,
        stop_message=job.stop_message,
        is_held=job.is_held,
    )


def among(reader: Reader, keys: Iterable[int]) -> dict[int, dict[JobState, int]]:
    """The studies among these jobs, each with the number of its trials by state."""
    query = select(StudyRow.job_key).where(StudyRow.job_key.in_(list(keys)))
    keys_of_studies = reader.session.scalars(query).all()
    trials_of = counts(reader, keys_of_studies) if keys_of_studies else {}
    return {key: trials_of.get(key, {}) for key in keys_of_studies}


class LoggedJob(NamedTuple):
    """A job with a log. `study` and `trial`: of a trial's job the id of its study and its number, else "" and 0.
    `until`: when its last line was written, of a job that goes on in the far future."""

    key: int
    job_id: str
    created_at: datetime
    until: datetime
    is_live: bool
    study: str
    trial: int


def logged_jobs(
    reader: Reader,
    project: str,
    job_ids: Collection[str] | None,
    earliest: datetime,
    latest: datetime,
    *,
    newest_first: bool,
    limit: int,
) -> list[LoggedJob]:
    """The jobs and trials that may have lines between two times, at most `limit`: by `until`, the last first, or by
    `created_at`. With `job_ids` those jobs alone, whatever their times, and of a study its trials."""
    study = aliased(JobRow)
    # A job in the queue writes nothing while it waits.
    until = case((JobRow.state == JobState.QUEUED, JobRow.queued_at), else_=func.coalesce(JobRow.ended_at, _FAR))
    query = (
        select(JobRow, study.job_id, until.label("until"))
        .outerjoin(study, study.key == JobRow.study_key)
        .where(JobRow.project == project)
        .options(load_only(JobRow.key, JobRow.job_id, JobRow.created_at, JobRow.state))
    )
    in_time = and_(JobRow.created_at <= latest, until >= earliest)
    if job_ids is None:
        query = query.where(in_time)
    else:
        query = query.where(or_(JobRow.job_id.in_(job_ids), and_(study.job_id.in_(job_ids), in_time)))
    query = query.order_by(until.desc() if newest_first else JobRow.created_at, JobRow.key).limit(limit)
    return [
        LoggedJob(
            job.key,
            job.job_id,
            job.created_at,
            job_until,
            job.state in UNFINISHED_JOBS,
            study_id or "",
            int(job.job_id.rpartition(".")[2]) if study_id else 0,
        )
        for job, study_id, job_until in reader.session.execute(query)
    ]


def trial_jobs(reader: Reader, key: int) -> Sequence[JobRow]:
    """The jobs of the trials of a study, by number; none for another job."""
    query = select(JobRow).join(TrialRow, TrialRow.job_key == JobRow.key).where(TrialRow.study_key == key)
    return reader.session.scalars(query.order_by(TrialRow.number)).all()


def trial_of(reader: Reader, job: JobRow) -> tuple[TrialRow, JobRow] | None:
    """The trial of which this is the job, and its study's job; None for another job."""
    if job.study_key is None:
        return None
    trial = reader.session.scalars(select(TrialRow).filter_by(job_key=job.key)).one()
    return trial, reader.job_by_key(job.study_key)


def agent_of(reader: Reader, key: int) -> str:
    """The agent of the latest run of a study's trials; "" without one, and for another job."""
    query = select(RunRow.agent_id).join(TrialRow, TrialRow.job_key == RunRow.job_key)
    query = query.where(TrialRow.study_key == key).order_by(RunRow.created_at.desc())
    return reader.session.scalar(query.limit(1)) or ""


def counts(reader: Reader, keys: Iterable[int]) -> dict[int, dict[JobState, int]]:
    """The number of trials of these studies by their state."""
    query = (
        select(TrialRow.study_key, JobRow.state, TrialRow.stopped_early, func.count())
        .join(JobRow, JobRow.key == TrialRow.job_key)
        .where(TrialRow.study_key.in_(list(keys)))
        .group_by(TrialRow.study_key, JobRow.state, TrialRow.stopped_early)
    )
    result: dict[int, dict[JobState, int]] = {}
    for key, job_state, stopped_early, count in reader.session.execute(query):
        of_study = result.setdefault(key, {})
        state = trial_state(job_state, stopped_early)
        of_study[state] = of_study.get(state, 0) + count
    return result


def reported_names(reader: Reader, job_keys: Iterable[int]) -> list[str]:
    """The names of the metrics that the primaries of these trials have reported."""
    return names_in(chain.from_iterable(summaries(reader, job_keys).values()))


def summaries(reader: Reader, job_keys: Iterable[int]) -> dict[int, list[Mapping[str, Any]]]:
    """The summaries of what the primaries of these trials report: their curves, run by run, and what is in the file of
    one that does not report its study's metric to it."""
    keys = list(job_keys)
    query = (
        select(RunRow.job_key, ReplicaRow.metrics)
        .join(ReplicaRow, ReplicaRow.run_id == RunRow.run_id)
        .where(RunRow.job_key.in_(keys), ReplicaRow.task == PRIMARY.name, ReplicaRow.metrics.is_not(None))
        .order_by(RunRow.job_key, RunRow.number)
    )
    result: dict[int, list[Mapping[str, Any]]] = {}
    for job_key, summary in reader.session.execute(query):
        result.setdefault(job_key, []).append(summary)
    files = select(TrialRow.job_key, TrialRow.others).where(TrialRow.job_key.in_(keys), TrialRow.others.is_not(None))
    for job_key, others in reader.session.execute(files):
        result.setdefault(job_key, []).append(others)
    return result


def with_curves(reader: Reader, key: int, *, ended: bool) -> list[tuple[TrialRow, list[Mapping[str, Any]]]]:
    """The trials of a study with the summaries of their primaries' curves, run by run: those that have not ended for
    the study's log, or with `ended` all."""
    wanted = select(TrialRow).options(undefer(TrialRow.measurements)).where(TrialRow.study_key == key)
    if not ended:
        wanted = wanted.where(TrialRow.logged != TrialPhase.ENDED)
    rows = {trial.job_key: trial for trial in reader.session.scalars(wanted)}
    return [(rows[job_key], of_job) for job_key, of_job in summaries(reader, rows).items()]


def stored_reports(reader: Reader, job_key: int) -> tuple[TrialRow, tuple[Report, ...]] | None:
    """The trial with that job, and its reports; None for a job that is no trial."""
    query = select(TrialRow).options(undefer(TrialRow.measurements)).filter_by(job_key=job_key)
    trial = reader.session.scalar(query)
    return None if trial is None else (trial, reports_of(trial))


def reports_of(trial: TrialRow) -> tuple[Report, ...]:
    """The measurements of a row that was read with them, beside the steps at which the metric was not finite."""
    return _reports(trial.measurements)


def add(writer: Writer, job: JobRow, seed: int, past: Sequence[tuple[Mapping[str, str], float]]) -> None:
    """Make a new job a study."""
    rows = [[dict(parameters), value] for parameters, value in past]
    writer.session.add(StudyRow(job_key=job.key, seed=seed, past=rows))
    writer.session.flush()


def add_trial(
    writer: Writer, study: JobRow, number: int, parameters: Mapping[str, str], now: datetime, described: str
) -> JobRow:
    """Create a trial with its job, in QUEUED. Its key makes a second one of that number impossible."""
    training_input, gang = writer.job_input(study)
    own = trial_input(training_input, number, parameters)
    job = JobRow(
        project=study.project,
        job_id=trial_id(study.job_id, number),
        owner=study.owner,
        study_key=study.key,
        state=JobState.QUEUED,
        training_input=own.canonical(),
        gang=study.gang,
        priority=study.priority,
        run_limit_s=study.run_limit_s,
        labels=study.labels,
        created_at=now,
        queued_at=now,
    )
    events = (Event("trial", f"Trial {number} of {study.job_id}: {described}."), queued_event(job))
    writer.add_job(job, (own, gang), now, events)
    writer.session.add(
        TrialRow(
            study_key=study.key,
            number=number,
            job_key=job.key,
            parameters=dict(parameters),
            logged=TrialPhase.CREATED,
            measurements=[],
        )
    )
    writer.session.flush()
    return job


def queued_event(job: JobRow) -> Event:
    return Event("queued", f"Job {job.job_id} is queued.")


def log_trial(writer: Writer, key: int, number: int, phase: TrialPhase, message: str, now: datetime) -> None:
    """Add a line about a trial to its study's log."""
    writer.session.get_one(TrialRow, (key, number)).logged = phase
    writer.add_event(key, Event("trial", message), now)


def mark_stopped_early(writer: Writer, key: int, number: int) -> None:
    writer.session.get_one(TrialRow, (key, number)).stopped_early = True


def mark_failing(writer: Writer, key: int, message: str, now: datetime) -> None:
    writer.session.get_one(StudyRow, key).failure = message
    writer.add_event(key, Event("failing", f"The study fails: {message}"), now)


def mark_exhausted(writer: Writer, key: int) -> None:
    writer.session.get_one(StudyRow, key).exhausted = True


def record_measurements(
    writer: Writer, trial: TrialRow, reports: Sequence[Report], reported: Measurement | None = None
) -> None:
    """Store all reports of a trial, in place of the earlier ones. `reported`: the newest in its metric file."""
    new: dict[str, Any] = {"measurements": [list(report) for report in reports]}
    if reported is not None:
        new["from_file"] = True
    if final := final_of(writer, trial, reports, reported):
        new |= {"step": final[0], "value": final[1]}
    _update(writer, trial, new)


def final_of(
    reader: Reader, trial: TrialRow, reports: Sequence[Report], reported: Measurement | None
) -> Measurement | None:
    """The measurement of a trial that counts: the newest in its metric file (`reported`), whatever its lines say, or
    the last that is finite; in a study that selects the best one, the best of all. None: that from its file stays."""
    spec = reader.job_input(reader.job_by_key(trial.study_key))[0].hyperparameters
    if spec is not None and spec.measurement_selection_type is MeasurementSelection.BEST_MEASUREMENT:
        earlier = None if trial.step is None or trial.value is None else (trial.step, trial.value)
        return best(reports, earlier, maximize=maximizes(spec, metric_of(reader, trial.study_key)))
    if reported is not None or trial.from_file:
        return reported
    return next(reversed(finite(reports)), None)


def record_others(writer: Writer, trial: TrialRow, others: Mapping[str, Any] | None) -> None:
    """Store the summary of other metrics in the file of a trial."""
    _update(writer, trial, {"others": others})


def _update(writer: Writer, trial: TrialRow, values: Mapping[str, Any]) -> None:
    statement = update(TrialRow).filter_by(study_key=trial.study_key, number=trial.number)
    writer.session.execute(statement.values(**values).execution_options(synchronize_session=False))


def choose_metric(writer: Writer, key: int, metric: str, message: str, now: datetime) -> None:
    """Rank the trials of a study by a metric that they report."""
    writer.session.get_one(StudyRow, key).metric = metric
    writer.add_event(key, Event("metric", message), now)


def metric_of(reader: Reader, key: int) -> str:
    """The metric that a study took from what its trials report; "" if it took none."""
    return reader.session.scalar(select(StudyRow.metric).filter_by(job_key=key)) or ""


def metrics_of(reader: Reader, keys: Iterable[int]) -> dict[int, str]:
    """`metric_of` several studies."""
    query = select(StudyRow.job_key, StudyRow.metric).where(StudyRow.job_key.in_(list(keys)))
    return {row.job_key: row.metric for row in reader.session.execute(query)}


def delete_with_trials(writer: Writer, key: int, now: datetime, by: str) -> None:
    """Delete what belongs to a study: its trials and their jobs; nothing for another job. Its own job stays."""
    jobs = trial_jobs(writer, key)
    for row in (TrialRow, StudyRow):
        column = TrialRow.study_key if row is TrialRow else StudyRow.job_key
        writer.session.execute(delete(row).where(column == key).execution_options(synchronize_session=False))
    for job in jobs:
        writer.delete_job(job, now, by)


def _trials(reader: Reader, key: int, with_measurements: bool) -> tuple[TrialSnapshot, ...]:
    """The trials of a study, by number. Without ORM objects: there may be 10,000."""
    columns = (*_TRIAL_COLUMNS, *([TrialRow.measurements] if with_measurements else ()))
    query = select(*columns).join(JobRow, JobRow.key == TrialRow.job_key)
    rows = reader.session.execute(query.where(TrialRow.study_key == key).order_by(TrialRow.number))
    return tuple(_snapshot_of(**row._mapping) for row in rows)


def _snapshot_of(
    *,
    step: int | None,
    value: float | None,
    stopped_early: bool,
    job_state: JobState,
    measurements: Sequence[Any] = (),
    **fields: Any,
) -> TrialSnapshot:
    reports = _reports(measurements)
    return TrialSnapshot(
        **fields,
        job_state=job_state,
        stopped_early=stopped_early and job_state not in ENDED_BY_ITSELF,
        final=None if step is None or value is None else (step, value),
        measurements=finite(reports),
        not_finite=tuple(at for at, reported in reports if reported is None),
    )


def _reports(stored: Iterable[Any]) -> tuple[Report, ...]:
    return tuple((int(step), None if value is None else float(value)) for step, value in stored)
