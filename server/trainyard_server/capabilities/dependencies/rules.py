"""Rules of dependencies: whether what a job starts after is so, still open, or can never be. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.job.keys.dependencies import Dependency
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

_MOST_NAMES = 10


@dataclass(frozen=True, slots=True)
class Predecessor:
    """A job that another one starts after, as it is now. `state` None: it was deleted. `has_all_metrics`: no later
    values come. `value`: the last one of the metric in the condition, None without one. `names`: those of its
    metrics."""

    state: JobState | None
    has_all_metrics: bool = False
    value: float | None = None
    names: Sequence[str] = ()


def is_fulfilled(dependency: Dependency, predecessor: Predecessor) -> bool:
    if not dependency.needs_success:
        return predecessor.state in FINAL_JOB_STATES
    if predecessor.state is not JobState.SUCCEEDED or dependency.condition is None:
        return predecessor.state is JobState.SUCCEEDED
    return (
        predecessor.has_all_metrics and predecessor.value is not None and dependency.condition.holds(predecessor.value)
    )


def obstacle(dependency: Dependency, predecessor: Predecessor) -> str:
    """The reason, as a clause, for which a dependency that is not fulfilled never will be; "" while it may be."""
    job, condition = dependency.job, dependency.condition
    if predecessor.state is None:
        return f"{job} was deleted, and it was to start after that job"
    if predecessor.state not in FINAL_JOB_STATES:
        return ""
    if predecessor.state is not JobState.SUCCEEDED:
        return f"{job} ended as {predecessor.state}, and it was to start after that job had succeeded"
    if condition is None or not predecessor.has_all_metrics:
        return ""
    if predecessor.value is not None:
        return f"{job} ended with {condition.metric} = {predecessor.value:.6g}, and it was to start if {condition}"
    if condition.metric in predecessor.names:
        return f"{job} ended with a {condition.metric} that is no number, and it was to start if {condition}"
    measured = ", ".join(predecessor.names[:_MOST_NAMES])
    has = did_you_mean(condition.metric, predecessor.names) or (f"It has {measured}." if measured else "It has none.")
    return f"{job} has no metric {condition.metric}, and it was to start if {condition}. {has}".removesuffix(".")


def cancellation(clause: str) -> str:
    """The sentence with which a job ends that can never start."""
    return f"The job was cancelled because {clause}{'' if clause.endswith('?') else '.'}"


def waits_for(open_ones: Iterable[Dependency]) -> str:
    """The reason to wait: `waits for train to succeed and for prepare to end`."""
    return "waits " + " and ".join(f"for {dependency.wanted}" for dependency in open_ones)
