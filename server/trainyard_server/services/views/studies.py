"""Use cases of studies: a study with its trials."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from trainyard_protocol.answers.tuning import FinalMetric, ParameterAxis, StudyCharts, StudyView, TrialPoint, TrialView
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Violation, quoted
from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.job.config.tuning_rules import direction_unknown
from trainyard_protocol.job.hyperparameters import Goal, HyperparameterSpec
from trainyard_protocol.lines.progress import MAX_NAME, lower_is_better
from trainyard_protocol.states import JobState
from trainyard_server.context import Backend
from trainyard_server.domain.tuning import space
from trainyard_server.domain.tuning.importance import importances
from trainyard_server.domain.tuning.measurements import Measurement, finite, listed, merged, names_in, of_curves
from trainyard_server.domain.tuning.study import StudySnapshot, TrialSnapshot, best_of
from trainyard_server.domain.tuning.study_charts import records, sample
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import studies

_EXAMPLES = 10


class TrialOrigin(NamedTuple):
    """A trial of a study: the study's job, its number and parameters."""

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
            study = known_study(reader, job, measurements=True)
            activities = reader.activities([trial.key for trial in study.trials])
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
            trials=tuple(_trial_view(trial, activities.get(trial.key, "")) for trial in study.trials),
        )

    def is_study(self, project: str, job_id: str) -> bool:
        """Raises NotFound."""
        with self._backend.store.read() as reader:
            return studies.kind_of(reader, known_job(reader, project, job_id).key).is_study

    def origin(self, project: str, job_id: str) -> TrialOrigin | None:
        """The trial of which this is the job; None for another job. Raises NotFound."""
        with self._backend.store.read() as reader:
            trial_and_study = studies.trial_of(reader, known_job(reader, project, job_id))
            if trial_and_study is None:
                return None
            trial, study = trial_and_study
            return TrialOrigin(study.job_id, trial.number, dict(trial.parameters))

    def charts(self, project: str, job_id: str) -> StudyCharts:
        """The study with a bounded number of its trials. Raises FailedPrecondition for a job that is none, NotFound."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            study = known_study(reader, job, measurements=False)
            maximize = study.maximizes
            shown = sample(study.trials, maximize=maximize)
            trials = [trial for trial in study.trials if trial.number in shown]
            live = [trial.key for trial in trials if trial.state is JobState.PREPARING]
            activities = reader.activities(live)
        spec, best = study.spec, best_of(study.trials, maximize=maximize)
        return StudyCharts(
            job_id=job_id,
            state=job.state,
            goal="MAXIMIZE" if maximize else "MINIMIZE",
            metric_tag=study.tag,
            algorithm=spec.algorithm,
            max_trials=spec.max_trials,
            planned_trials=spec.planned_trials,
            max_parallel_trials=spec.max_parallel_trials,
            early_stopping=spec.stops_early.words if spec.stops_early is not None else "",
            message=study.failure,
            counts=dict(study.counts),
            count=len(study.trials),
            best=best.number if best is not None else None,
            records=tuple(records(study.trials, maximize=maximize)),
            parameters=tuple(axes(spec, _ended(study.trials))),
            trials=tuple(_point(trial, activities.get(trial.key, "")) for trial in trials),
        )


def known_study(reader: Reader, job: JobRow, *, measurements: bool) -> StudySnapshot:
    """The study with its trials. Raises FailedPrecondition for another job."""
    study = studies.snapshot(reader, job.key, measurements=measurements)
    if study is None:
        raise FailedPrecondition(f"The job {job.job_id} has no trials: it has no hyperparameters.")
    return study


def _ranked_by(reader: Reader, study: StudySnapshot, ranking: Ranking) -> tuple[StudySnapshot, str, bool]:
    """The study with the values that its trials reported of another metric, its name, and whether it is to be large."""
    tag = ranking.metric or study.tag
    is_own = tag.casefold() == study.tag.casefold()
    curves = {} if is_own else _curves(reader, study, tag)
    if ranking.goal:
        maximize = ranking.goal.upper() == Goal.MAXIMIZE
    elif is_own:
        maximize = study.maximizes
    elif (lower := lower_is_better(tag)) is not None:
        maximize = not lower
    else:
        raise InvalidArgument(Violation("goal", direction_unknown(tag)))
    if is_own:
        return study, study.tag, maximize
    trials = [
        replace(trial, measurements=points, final=points[-1] if points else None)
        for trial in study.trials
        for points in (curves.get(trial.key, ()),)
    ]
    return replace(study, trials=tuple(trials)), tag, maximize


def _curves(reader: Reader, study: StudySnapshot, tag: str) -> dict[int, tuple[Measurement, ...]]:
    """The measurements of a metric of each trial, by its job. Raises InvalidArgument where no trial has any."""
    summaries = studies.summaries(reader, [trial.key for trial in study.trials])
    curves = {key: finite(merged((), of_curves(of_job, tag))) for key, of_job in summaries.items()}
    if not any(curves.values()):
        names = names_in(chain.from_iterable(summaries.values()))
        text = f"They reported {listed(names)}." if names else "They reported no metric at all."
        message = f"No trial of {study.job_id} has reported {quoted(tag)}. {did_you_mean(tag, names) or text}"
        raise InvalidArgument(Violation("metric", message))
    return curves


def _examples(study: StudySnapshot) -> list[int]:
    """The jobs of a few trials that have ended well, whose metrics are named."""
    return [trial.key for trial in study.trials if trial.state is JobState.SUCCEEDED][:_EXAMPLES]


def _ended(trials: Sequence[TrialSnapshot]) -> list[tuple[Mapping[str, str], float]]:
    """The parameters and the metric of the trials that succeeded."""
    return [
        (trial.parameters, trial.value)
        for trial in trials
        if trial.value is not None and trial.state is JobState.SUCCEEDED
    ]


def axes(spec: HyperparameterSpec, ended: Sequence[tuple[Mapping[str, str], float]]) -> list[ParameterAxis]:
    """The parameters, each before its children, with their importance by (parameters, metric) of what has succeeded."""
    importance = importances(spec, ended)
    result = []
    for _, param, parent in spec.located():
        low, high = (param.min_value, param.max_value) if param.min_value is not None else (None, None)
        listed = param.categorical_values or param.discrete_values
        result.append(
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
    return result


def by_importance(parameters: Iterable[ParameterAxis]) -> list[ParameterAxis]:
    """The parameters with an importance, the most important first."""
    rated = [parameter for parameter in parameters if parameter.importance is not None]
    return sorted(rated, key=lambda parameter: parameter.importance or 0.0, reverse=True)


def _point(trial: TrialSnapshot, activity: str) -> TrialPoint:
    note = trial.error.partition("\n")[0]
    if trial.state is JobState.QUEUED:
        note = trial.waiting
    elif trial.state is JobState.PREPARING:
        note = activity
    step, value = trial.final or (None, None)
    return TrialPoint(**_common(trial), step=step, value=value, note=note)


def _trial_view(trial: TrialSnapshot, activity: str) -> TrialView:
    return TrialView(
        **_common(trial),
        measurements=trial.measurements,
        final=FinalMetric(step=trial.final[0], value=trial.final[1]) if trial.final else None,
        activity=activity if trial.job_state is JobState.PREPARING else "",
        waiting=trial.waiting if trial.job_state is JobState.QUEUED else "",
        error=trial.error.partition("\n")[0],
        retries=trial.retries_used,
    )


def _common(trial: TrialSnapshot) -> dict[str, Any]:
    """The fields that both answers have."""
    return {
        "number": trial.number,
        "job_id": trial.job_id,
        "state": trial.state,
        "stopped_early": trial.stopped_early,
        "parameters": dict(trial.parameters),
        "created_at": trial.created_at,
        "started_at": trial.started_at,
        "ended_at": trial.ended_at,
    }
