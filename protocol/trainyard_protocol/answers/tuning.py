"""Views of studies: a job of hyperparameter tuning and its trials."""

from datetime import datetime
from typing import Any

from trainyard_protocol.message import Wire
from trainyard_protocol.states import JobState


class FinalMetric(Wire):
    """The last measurement of a trial."""

    step: int
    value: float


class TrialView(Wire):
    """A trial. `job_id` is that of its own job. `state` is a JobState; a trial that was stopped early has SUCCEEDED.
    `measurements` are (step, value) by step; `final` is None before the first. `activity` is what its run does while it
    is prepared, `waiting` why its job is queued, `error` the first line about its end. `retries`: new runs after
    failures of the infrastructure."""

    number: int
    job_id: str
    state: JobState
    stopped_early: bool = False
    parameters: dict[str, str]
    measurements: tuple[tuple[int, float], ...] = ()
    final: FinalMetric | None = None
    activity: str = ""
    waiting: str = ""
    error: str = ""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    retries: int = 0

    @property
    def value(self) -> float | None:
        """The metric that counts: None of a trial that failed."""
        return None if self.final is None or self.state is JobState.FAILED else self.final.value


class StudyView(Wire):
    """A study with its trials, by number. `spec` has the `hyperparameters` as they were sent. `counts` are the trials
    by state, `best` the number of the best one so far. `resumed`: trials of an earlier study that suggestions know.
    `message`: why the study fails; "" while it does not. `reported`: where no trial has a value, metrics that they have
    reported."""

    job_id: str
    state: JobState
    goal: str
    metric_tag: str
    reported: tuple[str, ...] = ()
    algorithm: str
    max_trials: int
    max_parallel_trials: int
    spec: dict[str, Any]
    counts: dict[JobState, int]
    completed: int
    failed: int
    best: int | None
    resumed: int = 0
    message: str = ""
    trials: tuple[TrialView, ...] = ()


class ParameterAxis(Wire):
    """A parameter of a study. `low` and `high` of DOUBLE and INTEGER, `values` of the others, as programs get them.
    `parent`: the parameter on whose value it depends. `importance`: the share of the differences between trials that it
    explains by itself, None while there are too few."""

    name: str
    type: str
    scale: str
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()
    parent: str = ""
    importance: float | None = None


class TrialPoint(Wire):
    """A trial as charts and tables have it. `value` is the last measurement, which counts unless the trial FAILED.
    `note`: what it waits for or does, or the first line of its error."""

    number: int
    job_id: str
    state: JobState
    stopped_early: bool = False
    parameters: dict[str, str]
    step: int | None = None
    value: float | None = None
    note: str = ""
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None


class StudyCharts(Wire):
    """A study as its page shows it. `trials` has all of them, or, of more than 1,000, the best and the newest; `count`
    is their number. `planned_trials`: fewer than `max_trials` where a grid has fewer points. `records`: the trials that
    were better than all before, with their metric. `early_stopping`: its rule in words, "" without one."""

    job_id: str
    state: JobState
    goal: str
    metric_tag: str
    algorithm: str
    max_trials: int
    planned_trials: int
    max_parallel_trials: int
    early_stopping: str = ""
    message: str = ""
    counts: dict[JobState, int]
    count: int
    best: int | None
    records: tuple[tuple[int, float], ...]
    parameters: tuple[ParameterAxis, ...]
    trials: tuple[TrialPoint, ...]
