"""Measurements of trials: how reports are joined, and which trials are stopped early. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from trainyard_protocol.job.hyperparameters import Goal
from trainyard_protocol.lines.progress import is_validation, lower_is_better

Measurement = tuple[int, float]
"""A step and the metric there."""

MAX_MEASUREMENTS = 1000
"""Most measurements of a trial: those of the highest steps are stored."""

_LISTED = 20

STARTUP_TRIALS = 3
"""Trials that must have completed before one is stopped early."""


def merged(stored: Sequence[Measurement], reported: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The measurements by step. Of two of one step the later report counts: a program that resumed from a checkpoint
    trains some steps again."""
    by_step = dict(stored) | dict(reported)
    return tuple(sorted(by_step.items()))[-MAX_MEASUREMENTS:]


def of_curves(summaries: Iterable[Mapping[str, Any]], tag: str) -> list[Measurement]:
    """The curve of that name, in any case, from the summaries (`CurveSummary.json`) of a job's primary, run by run."""
    points: list[Measurement] = []
    for summary in summaries:
        for curve in _curves(summary):
            if str(curve["name"]).casefold() == tag.casefold():
                newest = (curve["step"], curve["value"])
                # A value that is not finite is a text there.
                points += [(step, float(v)) for step, v in (*curve.get("points", ()), newest) if not isinstance(v, str)]
    return points


def names_in(summaries: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of all metrics in summaries, each once."""
    return list(dict.fromkeys(str(curve["name"]) for summary in summaries for curve in _curves(summary)))


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: `loss, accuracy and 3 more`."""
    more = len(names) - _LISTED
    text = ", ".join(names[:_LISTED])
    return f"{text} and {more} more" if more > 0 else text


def newest_values(summaries: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The newest value of each metric in summaries, as JSON has it; the later run counts."""
    return {str(curve["name"]): curve["value"] for summary in summaries for curve in _curves(summary)}


def chosen_metric(names: Iterable[str], goal: Goal | None) -> str:
    """The metric by which trials are ranked where nobody has named one: the only one of validation, or else the only
    one, whose name has a direction, and that of the goal if one was sent. "" if there is none, or a choice."""
    fitting = [name for name in names if _fits(name, goal)]
    candidates = [name for name in fitting if is_validation(name)] or fitting
    return candidates[0] if len(candidates) == 1 else ""


def _fits(name: str, goal: Goal | None) -> bool:
    lower = lower_is_better(name)
    return lower is not None and (goal is None or lower == (goal is Goal.MINIMIZE))


def _curves(summary: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield from summary.get("metrics", ())
    yield from summary.get("further", ())


def is_below_median(own: Sequence[Measurement], completed: Iterable[Sequence[Measurement]], *, maximize: bool) -> bool:
    """The median rule of Vizier: whether the best value so far is worse than the median of the averages that the
    completed trials had at the same step. False until STARTUP_TRIALS of those have values there."""
    if not own:
        return False
    last = own[-1][0]
    earlier = ([value for step, value in other if step <= last] for other in completed)
    averages = [sum(values) / len(values) for values in earlier if values]
    if len(averages) < STARTUP_TRIALS:
        return False
    values = [value for _, value in own]
    return max(values) < median(averages) if maximize else min(values) > median(averages)
