"""Use cases of studies: a study with its trials."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Violation, quoted
from trainyard_protocol.job.config.tuning_rules import direction_unknown
from trainyard_protocol.job.hyperparameters import Goal, HyperparameterSpec
from trainyard_protocol.lines.progress import MAX_NAME, lower_is_better
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_protocol.views.tuning import (
    FinalMetric,
    ParameterAxis,
    StudyCharts,
    StudyView,
    TrialPoint,
    TrialView,
)
from trainyard_server.context import Backend
from trainyard_server.domain.tuning import space
from trainyard_server.domain.tuning.importance import importances
from trainyard_server.domain.tuning.measurements import listed, merged, names_in, of_curves
from trainyard_server.domain.tuning.study import StudySnapshot, TrialSnapshot, best_of, maximizes, tag_of
from trainyard_server.domain.tuning.study_charts import TrialValue, best_first, best_quarter, records, sample
from trainyard_server.services.jobs.jobs import known_job
from trainyard_server.storage.db.base.models import StudyRow, TrialRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import studies
from trainyard_server.storage.db.tables.studies import TrialJob

_EXAMPLES = 10


class TrialOrigin(NamedTuple):
    """Of the job of a trial: its study, number and parameters."""

    study: str
    number: int
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ranking:
    """Another metric, and goal (`maximize`, `minimize`), by which trials are to be ranked; "": the study's, or the one
    that the name of the metric says. Raises InvalidArgument."""

    metric: str = ""
    goal: str = ""

    def __post_init__(self) -> None:
        if self.goal.upper() not in ("", Goal.MAXIMIZE, Goal.MINIMIZE):
            message = f"must be maximize or minimize; this is {quoted(self.goal)}."
            raise InvalidArgument(Violation("goal", message))
        if len(self.metric) > MAX_NAME:
            message = f"has at most {MAX_NAME} characters; this has {len(self.metric)}."
            raise InvalidArgument(Violation("metric", message))


class Studies:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def view(self, project: str, job_id: str, ranking: Ranking | None = None) -> StudyView:
        """The study with its trials, ranked by its metric or by another. Raises FailedPrecondition for a job that is
        none, NotFound; InvalidArgument for a ranking that is not possible."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            study = studies.snapshot(reader, job.key, measurements=True)
            if study is None:
                raise _no_study(job_id)
            rows = studies.trials(reader, job.key, measurements=True)
            activities = reader.activities([trial_job.key for _, trial_job in rows])
            tag, maximize = study.tag, study.maximizes
            if ranking is not None and (ranking.metric or ranking.goal):
                study, tag, maximize = _ranked_by(reader, study, ranking)
            is_ranked = any(trial.value is not None for trial in study.trials)
            reported = () if is_ranked else studies.reported_names(reader, _examples(study))
        spec = study.spec
        best = best_of(study.trials, maximize=maximize)
        return StudyView(
            job_id=job_id,
            state=job.state,
            goal="MAXIMIZE" if maximize else "MINIMIZE",
            metric_tag=tag,
            reported=tuple(reported),
            algorithm=spec.algorithm,
            max_trials=spec.max_trials,
            max_parallel_trials=spec.max_parallel_trials,
            spec=job.training_input["hyperparameters"],
            counts=dict(study.counts),
            completed=study.counts[JobState.SUCCEEDED],
            failed=study.counts[JobState.FAILED],
            best=best.number if best is not None else None,
            resumed=len(study.past),
            message=study.failure,
            trials=tuple(
                _trial_view(trial, row, trial_job, activities.get(trial_job.key, ""))
                for trial, (row, trial_job) in zip(study.trials, rows, strict=True)
            ),
        )

    def is_study(self, project: str, job_id: str) -> bool:
        """Raises NotFound."""
        with self._backend.store.read() as reader:
            return studies.is_study(reader, known_job(reader, project, job_id).key)

    def origin(self, project: str, job_id: str) -> TrialOrigin | None:
        """The trial of which this is the job; None for another job. Raises NotFound."""
        with self._backend.store.read() as reader:
            found = studies.trial_of(reader, known_job(reader, project, job_id))
            if found is None:
                return None
            trial, study = found
            return TrialOrigin(study.job_id, trial.number, dict(trial.parameters))

    def charts(self, project: str, job_id: str) -> StudyCharts:
        """The study with a bounded number of its trials. Raises FailedPrecondition for a job that is none, NotFound."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            row = reader.session.get(StudyRow, job.key)
            spec = reader.job_input(job)[0].hyperparameters
            if row is None or spec is None:
                raise _no_study(job_id)
            lines = studies.trial_lines(reader, job.key)
            values, maximize = [trial_value(line) for line in lines], maximizes(spec, row.metric)
            shown = sample(values, maximize=maximize)
            live = [
                line.job_key for line in lines if line.state is JobState.PREPARING and line.number in shown
            ]
            activities = reader.activities(live)
            ranked = best_first(values, maximize=maximize)
            return StudyCharts(
                job_id=job_id,
                state=job.state,
                goal="MAXIMIZE" if maximize else "MINIMIZE",
                metric_tag=tag_of(spec, row.metric),
                algorithm=spec.algorithm,
                max_trials=spec.max_trials,
                planned_trials=spec.planned_trials,
                max_parallel_trials=spec.max_parallel_trials,
                message=row.failure,
                counts=dict(Counter(line.state for line in lines)),
                count=len(lines),
                best=ranked[0].number if ranked else None,
                best_quarter=len(best_quarter(values, maximize=maximize)),
                records=tuple(records(values, maximize=maximize)),
                parameters=tuple(_axes(spec, lines)),
                trials=tuple(
                    _point(line, activities.get(line.job_key, "")) for line in lines if line.number in shown
                ),
            )


def trial_value(line: studies.TrialLine) -> TrialValue:
    """The trial with the metric that counts."""
    counts = line.value is not None and math.isfinite(line.value) and line.state is not JobState.FAILED
    return TrialValue(line.number, line.value if counts else None, line.job_state in FINAL_JOB_STATES)


def _ranked_by(reader: Reader, study: StudySnapshot, ranking: Ranking) -> tuple[StudySnapshot, str, bool]:
    """The study with the values that its trials reported of another metric, its name, and whether it is to be large."""
    tag = ranking.metric or study.tag
    if ranking.goal:
        maximize = ranking.goal.upper() == Goal.MAXIMIZE
    elif tag.casefold() == study.tag.casefold():
        maximize = study.maximizes
    elif (lower := lower_is_better(tag)) is not None:
        maximize = not lower
    else:
        raise InvalidArgument(Violation("goal", direction_unknown(tag)))
    if tag.casefold() == study.tag.casefold():
        return study, study.tag, maximize
    summaries = studies.summaries(reader, [trial.key for trial in study.trials])
    curves = {key: merged((), of_curves(of_job, tag)) for key, of_job in summaries.items()}
    if not any(curves.values()):
        names = names_in(chain.from_iterable(summaries.values()))
        text = f"They reported {listed(names)}." if names else "They reported no metric at all."
        message = f"No trial of {study.job_id} has reported {quoted(tag)}. {text}"
        raise InvalidArgument(Violation("metric", message))
    trials = [
        replace(trial, measurements=points, final=points[-1] if points else None)
        for trial in study.trials
        for points in (curves.get(trial.key, ()),)
    ]
    return replace(study, trials=tuple(trials)), tag, maximize


def _examples(study: StudySnapshot) -> list[int]:
    """The jobs of a few trials that have ended well, whose metrics are named."""
    return [trial.key for trial in study.trials if trial.state is JobState.SUCCEEDED][:_EXAMPLES]


def _no_study(job_id: str) -> FailedPrecondition:
    return FailedPrecondition(f"The job {job_id} has no trials: it has no hyperparameters.")


def _axes(spec: HyperparameterSpec, lines: Sequence[studies.TrialLine]) -> list[ParameterAxis]:
    """The parameters, each before its children."""
    ended = [
        (line.parameters, line.value)
        for line in lines
        if line.value is not None and line.state is JobState.SUCCEEDED
    ]
    importance = importances(spec, ended)
    axes = []
    for _, param, parent in spec.located():
        low, high = (param.min_value, param.max_value) if param.min_value is not None else (None, None)
        listed = param.categorical_values or param.discrete_values
        axes.append(
            ParameterAxis(
                name=param.parameter_name,
                type=param.type,
                scale=param.scale_type,
                low=None if listed else low,
                high=None if listed else high,
                values=tuple(space.text_of(param, value) for value in listed),
                parent=parent.parameter_name if parent else "",
                importance=importance.get(param.parameter_name),
            )
        )
    return axes


def _point(line: studies.TrialLine, activity: str) -> TrialPoint:
    state = line.state
    note = line.error.partition("\n")[0]
    if state is JobState.QUEUED:
        note = line.waiting
    elif state is JobState.PREPARING:
        note = activity
    finite = line.value is not None and math.isfinite(line.value)
    return TrialPoint(
        number=line.number,
        job_id=line.job_id,
        state=state,
        stopped_early=line.stopped_early,
        parameters=dict(line.parameters),
        step=line.step,
        value=line.value if finite else None,
        note="" if line.stopped_early else note,
        created_at=line.created_at,
        started_at=line.started_at,
        ended_at=line.ended_at,
    )


def _trial_view(trial: TrialSnapshot, row: TrialRow, job: TrialJob, activity: str) -> TrialView:
    return TrialView(
        number=trial.number,
        job_id=job.job_id,
        state=trial.state,
        stopped_early=trial.stopped_early,
        parameters=dict(row.parameters),
        measurements=trial.measurements,
        final=FinalMetric(step=trial.final[0], value=trial.final[1]) if trial.final else None,
        activity=activity if job.state is JobState.PREPARING else "",
        waiting=job.waiting if job.state is JobState.QUEUED else "",
        error=trial.error.partition("\n")[0],
        created_at=job.created_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        retries=job.retries_used,
    )
