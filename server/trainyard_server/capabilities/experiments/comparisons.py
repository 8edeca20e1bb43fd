"""Comparisons: jobs beside each other, of all projects that the caller sees."""

from collections.abc import Mapping, Sequence

from trainyard_protocol.answers.comparison import ComparedJob, ComparedMetric, ComparisonView
from trainyard_protocol.errors import InvalidArgument, NotFound, Violation, quoted
from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_protocol.lines.progress import MAX_NAME, lower_is_better
from trainyard_protocol.states import JobState
from trainyard_server.capabilities.experiments.comparison_fields import (
    MOST_FIELDS,
    Fields,
    best_places,
    compared,
    fields_of,
)
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.domain.metrics.summary import MetricSummary, ordered, rated
from trainyard_server.services.views.studies import axes
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import job_values, origins, studies

FEWEST_JOBS, MOST_JOBS = 2, 50

_LONGEST = 300  # characters; no job's name with its project is longer

JobName = tuple[str, str]
"""The project of a job, and its id."""


def job_names(caller: Caller, texts: Sequence[str], fewest: int = FEWEST_JOBS) -> list[JobName]:
    """The jobs that texts such as `PROJECT/JOB` name, each once. Raises InvalidArgument; PermissionDenied for a project
    that the caller does not see."""
    distinct = list(dict.fromkeys(texts[: MOST_JOBS + 1]))
    if not fewest <= len(distinct) <= MOST_JOBS or len(texts) > 2 * MOST_JOBS:
        message = f"names {fewest} to {MOST_JOBS} jobs, each as PROJECT/JOB; these are {len(texts)}."
        raise InvalidArgument(Violation("job", message))
    names = [(project, job) for project, _, job in (text.partition("/") for text in distinct)]
    wrong = [
        Violation("job", f"{quoted(text[:_LONGEST])} is not the name of a job; a name is PROJECT/JOB.")
        for text, (project, job) in zip(distinct, names, strict=True)
        if not (project and job) or "/" in job or len(text) > _LONGEST
    ]
    if wrong:
        raise InvalidArgument(wrong)
    for project, _ in names:
        caller.check_sees(project)
    return names


class Comparisons:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def view(self, names: Sequence[JobName], metric: str = "") -> ComparisonView:
        """The jobs beside each other, judged by a metric or by the most important one. Raises NotFound where none of
        the jobs exists, InvalidArgument for a metric that none of them has."""
        with self._backend.store.read() as reader:
            rows = [(name, reader.job(*name)) for name in names]
            jobs = [job for _, job in rows if job is not None]
            missing = ["/".join(name) for name, job in rows if job is None]
            if not jobs:
                raise NotFound(f"None of these jobs exists: {', '.join(missing)}.")
            values = job_values.values_of(reader, [job.key for job in jobs], None, None)
            given = [values[job.key].parameters for job in jobs]
            metrics = [values[job.key].metrics for job in jobs]
            measured = ordered(dict.fromkeys(name for job in metrics for name in job))
            metric = _judged_by(measured, metric)
            spec, searched = _space(reader, jobs)
            parameters = [{**values, **own} for values, own in zip(given, searched, strict=True)]
            numbers = [_number(summaries, metric) for summaries in metrics]
            ended = [
                (own, number)
                for job, own, number in zip(jobs, searched, numbers, strict=True)
                if number is not None and job.state is JobState.SUCCEEDED
            ]
            lower = lower_is_better(metric)
            judged = [None if job.state is JobState.FAILED else of for job, of in zip(jobs, numbers, strict=True)]
            best = best_places(judged, lower=lower)
            differing, equal = compared(given, _fields(reader, jobs), metrics)
            return ComparisonView(
                jobs=tuple(_job(*of_job) for of_job in zip(jobs, parameters, metrics, strict=True)),
                missing=tuple(missing),
                differing=tuple(differing[:MOST_FIELDS]),
                equal=tuple(equal[:MOST_FIELDS]),
                left_out=max(0, len(differing) - MOST_FIELDS) + max(0, len(equal) - MOST_FIELDS),
                metrics=tuple(measured),
                metric=metric,
                goal="" if lower is None else "MINIMIZE" if lower else "MAXIMIZE",
                best=best[0] if best else None,
                axes=tuple(axes(spec, ended)) if spec is not None else (),
            )

    def keys(self, names: Sequence[JobName]) -> list[int]:
        """The keys of those of the jobs that exist."""
        with self._backend.store.read() as reader:
            return [job.key for name in names if (job := reader.job(*name)) is not None]


def _space(reader: Reader, jobs: Sequence[JobRow]) -> tuple[HyperparameterSpec | None, list[Mapping[str, str]]]:
    """The search space of the study whose trials all of the jobs are, and their parameters in it; nothing otherwise."""
    trials = [trial for job in jobs if (trial := studies.trial_of(reader, job)) is not None]
    if len(trials) < len(jobs) or len({study.key for _, study in trials}) > 1:
        return None, [{} for _ in jobs]
    return reader.job_input(trials[0][1])[0].hyperparameters, [trial.parameters for trial, _ in trials]


def _fields(reader: Reader, jobs: Sequence[JobRow]) -> list[Fields]:
    recorded = origins.summaries(reader, [job.key for job in jobs])
    fields = []
    for job in jobs:
        resolved = origins.resolved(reader, job)
        fields.append(fields_of(job.training_input, job.labels, recorded.get(job.key), resolved and resolved[0]))
    return fields


def _judged_by(measured: Sequence[str], metric: str) -> str:
    if metric and metric not in measured:
        measures = f"They measured {', '.join(measured[:20])}." if measured else "They measured nothing."
        measures = did_you_mean(metric, measured) or measures
        raise InvalidArgument(Violation("metric", f"{quoted(metric[:MAX_NAME])} is in none of these jobs. {measures}"))
    return metric or next(iter([*rated(measured), *measured]), "")


def _number(metrics: Mapping[str, MetricSummary], metric: str) -> float | None:
    """The best value of the metric, or the last one where its name does not tell what is better."""
    summary = metrics.get(metric)
    if summary is None:
        return None
    best = summary.best(metric)
    return summary.last if best is None else best


def _job(job: JobRow, parameters: dict[str, str], metrics: Mapping[str, MetricSummary]) -> ComparedJob:
    return ComparedJob(
        project=job.project,
        job_id=job.job_id,
        state=job.state,
        owner=job.owner,
        created_at=job.created_at,
        started_at=job.started_at,
        ended_at=job.ended_at,
        parameters=parameters,
        metrics={
            name: ComparedMetric(step=summary.step, last=summary.last, best=summary.best(name))
            for name, summary in metrics.items()
        },
    )
