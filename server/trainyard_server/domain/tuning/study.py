"""Lifecycle of a study. Pure: the study with its trials in, the next decision out.

`step` returns the next decision. The caller applies it in one transaction, reads the study again and repeats until
`step` returns None. Trials run, retry and end by the lifecycle of jobs; a study only creates, stops and counts them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_protocol.lines.progress import lower_is_better
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.domain.lifecycle.messages import JOB_COMPLETED
from trainyard_server.domain.tuning.early_stopping import TrialCurve, reason_to_stop
from trainyard_server.domain.tuning.measurements import Measurement
from trainyard_server.domain.tuning.suggester import PastTrial

HOPELESS_TRIALS = 3
"""A study with maxFailedTrials 0 fails if its first trials, this many, all fail and none has succeeded. It also
fails if this many have ended well and none reported its metric."""

LONGEST_STUDY_ID = 122
"""Characters of a study's id: its trials are jobs `ID.NUMBER`."""

MOST_QUEUED = 16
"""Trials of a study in the queue: those that it creates later know more, and other jobs wait behind fewer."""

ENDED_BY_ITSELF = frozenset({JobState.SUCCEEDED, JobState.FAILED})
"""States of a trial's job that a stop did not bring about, although one may have been on its way."""

_THE_TRIAL_WAS = "The trial was "

_SHOWN = 200  # characters of the parameters in a message


class TrialPhase(StrEnum):
    """The last phase of a trial that its study's log has a line about."""

    CREATED = "CREATED"
    STARTED = "STARTED"
    ENDED = "ENDED"


@dataclass(frozen=True, slots=True)
class TrialSnapshot:
    """A trial, with what lists and charts show of its job: its state, key, id and times, what it waits for, and why it
    failed or was stopped. `final` is its last measurement; the others are read where they are asked for, with the steps
    at which its metric was not finite."""

    number: int
    key: int
    job_id: str
    job_state: JobState
    parameters: Mapping[str, str]
    created_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    waiting: str = ""
    retries_used: int = 0
    logged: TrialPhase = TrialPhase.CREATED
    stopped_early: bool = False
    final: Measurement | None = None
    measurements: tuple[Measurement, ...] = ()
    not_finite: tuple[int, ...] = ()
    error: str = ""

    @property
    def state(self) -> JobState:
        """The trial's state: one that was stopped early has completed."""
        return trial_state(self.job_state, self.stopped_early)

    @property
    def has_ended(self) -> bool:
        return self.job_state in FINAL_JOB_STATES

    @property
    def has_begun(self) -> bool:
        """A short program may end before it was ever seen running."""
        return self.started_at is not None or self.job_state in (JobState.SUCCEEDED, JobState.FAILED)

    @property
    def value(self) -> float | None:
        """The metric that counts: None of a trial that failed."""
        return None if self.final is None or self.state is JobState.FAILED else self.final[1]


@dataclass(frozen=True, slots=True)
class StudySnapshot:
    """A study with its trials, by their numbers. `metric`: the metric that was taken from what trials report, "" where
    the config's counts. `past`: parameters and value of trials of the study that it resumes. `failure`: it fails as
    soon as no trial runs. `exhausted`: its space has no further trial. `is_held`: it may not start yet."""

    key: int
    project: str
    job_id: str
    state: JobState
    spec: HyperparameterSpec
    seed: int
    trials: tuple[TrialSnapshot, ...] = ()
    metric: str = ""
    past: tuple[tuple[Mapping[str, str], float], ...] = ()
    failure: str = ""
    exhausted: bool = False
    stop_message: str = ""
    is_held: bool = False

    @property
    def tag(self) -> str:
        return tag_of(self.spec, self.metric)

    @property
    def maximizes(self) -> bool:
        return maximizes(self.spec, self.metric)

    @property
    def chooses_metric(self) -> bool:
        """Whether a metric that trials report is still to be taken as the study's."""
        return not (self.spec.needs_metric or self.metric or any(trial.final for trial in self.trials))

    @property
    def counts(self) -> Counter[JobState]:
        """The trials by state."""
        return Counter(trial.state for trial in self.trials)

    @property
    def identity(self) -> object:
        """All that a decision depends on. Measurements after the first, which come while it is found, do not matter."""
        trials = [(t.number, t.job_state, t.stopped_early, t.logged) for t in self.trials]
        is_measured = any(trial.final for trial in self.trials)
        return self.state, self.failure, self.exhausted, self.metric, is_measured, trials


@dataclass(frozen=True, slots=True)
class MoveStudy:
    """A new state of the study. `message` goes into its log. `lacks_metric`: it ends with what trials have reported."""

    state: JobState
    message: str = ""
    error: str = ""
    lacks_metric: bool = False


@dataclass(frozen=True, slots=True)
class CreateTrial:
    number: int


@dataclass(frozen=True, slots=True)
class LogTrial:
    """A line of the study's log about a trial. `lacks_metric`: it ends with what the trial has reported instead."""

    number: int
    phase: TrialPhase
    message: str
    lacks_metric: bool = False


@dataclass(frozen=True, slots=True)
class StopTrials:
    """Cancel the jobs of these trials. `early`: by the rule of early stopping."""

    numbers: tuple[int, ...]
    message: str
    early: bool = False


@dataclass(frozen=True, slots=True)
class FailStudy:
    """The study fails once its trials have ended: none is created any more. `lacks_metric`: the message ends with what
    trials have reported instead."""

    message: str
    lacks_metric: bool = False


Decision = MoveStudy | CreateTrial | LogTrial | StopTrials | FailStudy


def step(study: StudySnapshot) -> Decision | None:
    """The next decision, or None."""
    if study.state in FINAL_JOB_STATES or study.is_held:
        return None
    return _logged(study) or _moved(study) or _cancelling(study) or _failing(study) or _going_on(study)


def tag_of(spec: HyperparameterSpec, metric: str) -> str:
    """The name of the metric that counts. `metric`: the one that was taken from what trials report, or ""."""
    return metric or spec.hyperparameter_metric_tag


def maximizes(spec: HyperparameterSpec, metric: str) -> bool:
    """Whether the metric is to be large: by the goal that was sent, else by the name of a metric that was taken."""
    by_name = lower_is_better(metric) if metric and spec.sent_goal is None else None
    return not (spec.minimizes if by_name is None else by_name)


def trial_state(job_state: JobState, stopped_early: bool) -> JobState:
    return JobState.SUCCEEDED if stopped_early and job_state is JobState.CANCELLED else job_state


def best_of(trials: Iterable[TrialSnapshot], *, maximize: bool) -> TrialSnapshot | None:
    """The trial with the best value; the first of equal ones."""
    return next(iter(best_first(trials, maximize=maximize)), None)


def best_first(trials: Iterable[TrialSnapshot], *, maximize: bool) -> list[TrialSnapshot]:
    """The trials that have a value, the best first."""
    return ranked((trial for trial in trials if trial.value is not None), maximize=maximize)


def ranked(trials: Iterable[TrialSnapshot], *, maximize: bool) -> list[TrialSnapshot]:
    """The trials, best first; those without a value last."""

    def order(trial: TrialSnapshot) -> tuple[bool, float, int]:
        value = trial.value
        return value is None, 0.0 if value is None else -value if maximize else value, trial.number

    return sorted(trials, key=order)


def past_trials(study: StudySnapshot) -> list[PastTrial]:
    """All trials that a suggestion knows. Those of the study that is resumed come first, with numbers up to 0."""
    first = 1 - len(study.past)
    past = [PastTrial(first + n, parameters, value, True) for n, (parameters, value) in enumerate(study.past)]
    return past + [
        PastTrial(trial.number, trial.parameters, trial.value if trial.has_ended else None, trial.has_ended)
        for trial in study.trials
    ]


def _logged(study: StudySnapshot) -> LogTrial | None:
    """The next line about a trial: in the order of their numbers, each as it starts and as it ends."""
    for trial in study.trials:
        if trial.logged is TrialPhase.CREATED and trial.has_begun:
            message = f"Trial {trial.number} started: {shown(trial.parameters)}."
            return LogTrial(trial.number, TrialPhase.STARTED, message)
        if trial.has_ended and trial.logged is not TrialPhase.ENDED:
            lacks_metric = trial.state is JobState.SUCCEEDED and trial.final is None
            return LogTrial(trial.number, TrialPhase.ENDED, _end_of(study, trial), lacks_metric)
    return None


def _end_of(study: StudySnapshot, trial: TrialSnapshot) -> str:
    name, tag = f"Trial {trial.number}", study.tag
    if trial.state is JobState.FAILED:
        return f"{name} failed: {_first_line(trial.error) or 'its job failed.'}"
    if trial.state is JobState.CANCELLED:
        return f"{name} was cancelled: {_first_line(trial.error) or 'its job was cancelled.'}"
    stop = f"{name} was {_first_line(trial.error).removeprefix(_THE_TRIAL_WAS)}" if trial.stopped_early else ""
    if trial.final is None:
        return stop or (f"{name} finished." if study.chooses_metric else f"{name} finished, and reported no {tag}.")
    earlier = [other for other in study.trials if other.logged is TrialPhase.ENDED]
    best = best_of([*earlier, trial], maximize=study.maximizes) or trial
    rank = "best so far" if best is trial else f"best: {best.value:.6g} of trial {best.number}"
    at, value = trial.final
    result = f"{tag} {value:.6g} at step {at} ({rank})."
    return f"{stop} It ends with {result}" if stop else f"{name} finished: {result}"


def _cancelling(study: StudySnapshot) -> Decision | None:
    if study.state is not JobState.CANCELLING:
        return None
    if stop := _stop_all(study, study.stop_message):
        return stop
    if _live(study):
        return None
    return MoveStudy(JobState.CANCELLED, "Job cancelled.", study.stop_message)


def _failing(study: StudySnapshot) -> Decision | None:
    if study.state is JobState.CANCELLING:
        return None
    if not study.failure:
        failure = _failure(study)
        return FailStudy(failure) if failure else _without_metric(study)
    if stop := _stop_all(study, f"The study fails: {study.failure}"):
        return stop
    return None if _live(study) else MoveStudy(JobState.FAILED, "Job failed.", study.failure)


def _failure(study: StudySnapshot) -> str:
    """The reason why so many failed trials fail the study; "" while they do not."""
    failed = [trial for trial in study.trials if trial.state is JobState.FAILED]
    if not failed:
        return ""
    spec, count = study.spec, len(failed)
    last = failed[-1]
    example = f"Trial {last.number}: {_first_line(last.error)}"
    if spec.max_failed_trials:
        if count < spec.max_failed_trials:
            return ""
        limit = f"maxFailedTrials is {spec.max_failed_trials}"
        return f"{count} of {spec.max_trials} trials failed ({limit}). {example}"
    first = min(HOPELESS_TRIALS, spec.max_trials)
    if count >= first and count == sum(trial.has_ended for trial in study.trials):
        return f"The first {count} trials that ended all failed. {example}"
    if count > spec.max_trials / 2:
        return f"{count} of {spec.max_trials} trials failed. {example}"
    return ""


def _without_metric(study: StudySnapshot) -> FailStudy | None:
    """The end of a study that cannot rank its trials: the first have ended well, and none of all has its metric."""
    ended = sum(trial.state is JobState.SUCCEEDED for trial in study.trials)
    first = min(HOPELESS_TRIALS, study.spec.planned_trials)
    if not study.spec.needs_metric or ended < first or any(trial.final for trial in study.trials):
        return None
    trials = f"first {ended} trials that ended" if ended > 1 else "trial that ended"
    return FailStudy(f"The {trials} reported no {study.tag}.", lacks_metric=True)


def _moved(study: StudySnapshot) -> MoveStudy | None:
    """PREPARING once a trial has left the queue, RUNNING once one has run or ended."""
    if study.state is JobState.QUEUED and any(t.job_state is not JobState.QUEUED for t in study.trials):
        return MoveStudy(JobState.PREPARING)
    if study.state is JobState.PREPARING and any(t.started_at or t.has_ended for t in study.trials):
        return MoveStudy(JobState.RUNNING)
    return None


def _going_on(study: StudySnapshot) -> Decision | None:
    if study.state is JobState.CANCELLING or study.failure:
        return None
    if stop := _stopped_early(study):
        return stop
    count, live = len(study.trials), len(_live(study))
    more = count < study.spec.max_trials and not study.exhausted
    if more:
        queued = study.counts[JobState.QUEUED]
        has_room = live < study.spec.max_parallel_trials and queued < MOST_QUEUED
        return CreateTrial(count + 1) if has_room else None
    return None if live or not count else _end(study)


def _end(study: StudySnapshot) -> MoveStudy:
    if not study.counts[JobState.SUCCEEDED]:
        message = f"None of {len(study.trials)} trials succeeded."
        return MoveStudy(JobState.FAILED, "Job failed.", message)
    best = best_of(study.trials, maximize=study.maximizes)
    tag, count = study.tag, len(study.trials)
    if best is None and study.spec.needs_metric:
        message = f"No trial that succeeded reported {tag}."
        return MoveStudy(JobState.FAILED, "Job failed.", message, lacks_metric=True)
    if best is None:
        done = f"{JOB_COMPLETED} Its trials are not ranked, since no metric was named."
        return MoveStudy(JobState.SUCCEEDED, done, lacks_metric=True)
    winner = f"trial {best.number}, {tag} {best.value:.6g} ({shown(best.parameters)})"
    return MoveStudy(JobState.SUCCEEDED, f"{JOB_COMPLETED} Best of {count} trials: {winner}.")


def _stopped_early(study: StudySnapshot) -> StopTrials | None:
    rule = study.spec.stops_early
    if rule is None:
        return None
    counted = [
        (trial, TrialCurve(trial.measurements, trial.not_finite))
        for trial in study.trials
        if trial.state is not JobState.FAILED
    ]
    curves = [curve for _, curve in counted]
    completed = [curve for trial, curve in counted if trial.state is JobState.SUCCEEDED and not trial.stopped_early]
    for place, (trial, curve) in enumerate(counted):
        if trial.job_state is not JobState.RUNNING or trial.stopped_early:
            continue
        if reason := reason_to_stop(rule, curve, curves[:place], completed, maximize=study.maximizes):
            return StopTrials((trial.number,), f"{_THE_TRIAL_WAS}stopped early by {reason}.", early=True)
    return None


def _stop_all(study: StudySnapshot, message: str) -> StopTrials | None:
    """Stop every live trial that is not being stopped."""
    going = tuple(t.number for t in _live(study) if t.job_state is not JobState.CANCELLING)
    return StopTrials(going, message) if going else None


def _live(study: StudySnapshot) -> Sequence[TrialSnapshot]:
    return [trial for trial in study.trials if not trial.has_ended]


def shown(parameters: Mapping[str, str]) -> str:
    """`lr=0.01, layers=2`, cut where it is long."""
    text = ", ".join(f"{name}={_short(value)}" for name, value in parameters.items())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _short(value: str) -> str:
    """A number with six digits; any other text as it is."""
    try:
        number = float(value)
    except ValueError:
        return value
    return value if value.lstrip("-").isdecimal() else f"{number:.6g}"
