"""Views of jobs beside each other: in what they differ, what they measured, and their curves."""

from datetime import datetime

from trainyard_protocol.answers.metrics import MetricsView
from trainyard_protocol.answers.tuning import ParameterAxis
from trainyard_protocol.message import Wire
from trainyard_protocol.states import JobState


class ComparedMetric(Wire):
    """The last value of a metric with its step, and its best one; None where it is not finite, and where the name does
    not tell whether lower or higher is better."""

    step: int
    last: float | None
    best: float | None


class ComparedJob(Wire):
    """A job of a comparison."""

    project: str
    job_id: str
    state: JobState
    owner: str
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    parameters: dict[str, str]
    metrics: dict[str, ComparedMetric]


class ComparedField(Wire):
    """A field with its value in each job, None where a job has none. `section` is parameters, results, config, origin
    or environment; `best` are the places of the jobs that have the best value."""

    section: str
    name: str
    values: tuple[str | float | None, ...]
    best: tuple[int, ...] = ()


class ComparisonView(Wire):
    """Jobs beside each other. `missing`: names of jobs that do not exist. `differing` has the fields in which the jobs
    differ and all results, `equal` the others; `left_out` further fields are in neither. `metric` is what the jobs are
    judged by, with the `goal` MAXIMIZE or MINIMIZE, "" where its name does not tell; `best` is the place of the best
    job. `axes` are the parameters of the study whose trials all of the jobs are, none for other jobs."""

    jobs: tuple[ComparedJob, ...]
    missing: tuple[str, ...] = ()
    differing: tuple[ComparedField, ...] = ()
    equal: tuple[ComparedField, ...] = ()
    left_out: int = 0
    metrics: tuple[str, ...] = ()
    metric: str = ""
    goal: str = ""
    best: int | None = None
    axes: tuple[ParameterAxis, ...] = ()


class JobCurvesView(Wire):
    """The curves of one of several jobs."""

    project: str
    job_id: str
    curves: MetricsView


class CurvesView(Wire):
    """The curves of several jobs, without those that do not exist."""

    jobs: tuple[JobCurvesView, ...]
