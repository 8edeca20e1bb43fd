"""Status of a study, by its v1 job, whose trials come best first. Pure.

The texts have names and values of users: what prints them removes control characters.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainyard_cli.output.jobs.formats import count
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

if TYPE_CHECKING:
    from trainyard_protocol.job.hyperparameters import HyperparameterSpec


def words(job: Mapping[str, Any]) -> list[str]:
    """State of a study for a status line; empty for any other job."""
    output = job.get("trainingOutput", {})
    if not output.get("isHyperparameterTuningJob"):
        return []
    trials = output.get("trials", [])
    states = [trial.get("state") for trial in trials]
    ended = sum(state in FINAL_JOB_STATES for state in states)
    if job.get("state") in FINAL_JOB_STATES:
        parts = [count(ended, "trial")]
    else:
        planned = _spec(job).planned_trials
        parts = [f"{ended} of {count(planned, 'trial')} ended"]
    if running := states.count(JobState.RUNNING):
        parts.append(f"{running} running")
    best = best_text(output)
    return [*parts, f"best {best}"] if best else parts


def best_text(output: Mapping[str, Any]) -> str:
    """`accuracy 0.97 (trial 7)` of a trainingOutput, whose trials come best first; "" without a metric."""
    best = _best(output)
    if best is None:
        return ""
    tag = output.get("hyperparameterMetricTag", "")
    return f"{tag} {float(best['finalMetric']['objectiveValue']):.6g} (trial {best['trialId']})"


def summary(job: Mapping[str, Any]) -> list[str]:
    """Lines about a study and its best trial, for a person; empty for any other job."""
    output = job.get("trainingOutput", {})
    parts = words(job)
    if not parts:
        return []
    lines = [f"Trials: {', '.join(parts)}.", *_early_stopping(job)]
    best = _best(output)
    if best is not None:
        values = ", ".join(f"{name}={value}" for name, value in best.get("hyperparameters", {}).items())
        lines.append(f"Best: trial {best['trialId']}, {values}.")
    return lines


def _early_stopping(job: Mapping[str, Any]) -> list[str]:
    rule = _spec(job).stops_early
    if rule is None:
        return []
    trials = job["trainingOutput"].get("trials", [])
    stopped = count(sum(bool(trial.get("isTrialStoppedEarly")) for trial in trials), "trial")
    return [f"Early stopping: {rule.words}; {stopped} stopped."]


def next_step(job: Mapping[str, Any], flags: str = "") -> list[str]:
    """The command that trains with the best trial of a study that has one. `flags` select its server and project."""
    best = _best(job.get("trainingOutput", {}))
    if best is None:
        return []
    return [f"To train with it:  jobs submit training --from-trial {job['jobId']}/{best['trialId']}{flags}"]


def _spec(job: Mapping[str, Any]) -> "HyperparameterSpec":
    from trainyard_protocol.job.hyperparameters import HyperparameterSpec  # most jobs are no study

    return HyperparameterSpec.model_validate(job["trainingInput"]["hyperparameters"])


def _best(output: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first trial with a metric that counts: one that failed has none."""
    trials: Sequence[Mapping[str, Any]] = output.get("trials", [])
    counted = (trial for trial in trials if "finalMetric" in trial and trial["state"] != JobState.FAILED)
    return next(counted, None)
