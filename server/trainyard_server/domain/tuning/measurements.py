"""Measurements of trials: how reports are joined, and which metric is chosen. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from trainyard_protocol.job.hyperparameters import Goal
from trainyard_protocol.lines.progress import is_validation, lower_is_better

Measurement = tuple[int, float]
"""A step and the metric there."""

Report = tuple[int, float | None]
"""A step and the metric there; None: it was NaN or infinite."""

MAX_MEASUREMENTS = 1000
"""Most measurements of a trial. Of more, those that are dropped lie closest beside others, by the ratio of steps."""

_LISTED = 20

_Value = TypeVar("_Value", float, float | None)


def merged(
    stored: Iterable[tuple[int, _Value]], reported: Iterable[tuple[int, _Value]]
) -> tuple[tuple[int, _Value], ...]:
    """The measurements by step. Of two of one step the later report counts: a program that resumed from a checkpoint
    trains some steps again."""
    by_step = dict(stored) | dict(reported)
    kept = sorted(by_step)
    while len(kept) > MAX_MEASUREMENTS:
        kept = _thinned(kept, len(kept) - MAX_MEASUREMENTS)
    return tuple((step, by_step[step]) for step in kept)


def _thinned(steps: Sequence[int], most: int) -> list[int]:
    """Steps without at most `most` of them, whose neighbours are closest in ratio; never two beside each other, the
    first or the last. Early steps stay, by which trials are compared long after they ended."""
    gaps = {at: (steps[at + 1] - steps[at - 1]) / max(abs(steps[at]), 1) for at in range(1, len(steps) - 1)}
    dropped: set[int] = set()
    for at in sorted(gaps, key=lambda at: (gaps[at], at)):
        if len(dropped) == most:
            break
        if dropped.isdisjoint((at - 1, at + 1)):
            dropped.add(at)
    return [step for at, step in enumerate(steps) if at not in dropped]


def finite(reports: Iterable[Report]) -> tuple[Measurement, ...]:
    """The reports that are measurements."""
    return tuple((step, value) for step, value in reports if value is not None)


def best(reports: Iterable[Report], earlier: Measurement | None, *, maximize: bool) -> Measurement | None:
    """The best measurement of the reports; of equal ones the first. `earlier`, the best one before, counts even where
    its step was dropped."""
    found = dict([earlier] if earlier is not None else ()) | dict(reports)
    measured = sorted((step, value) for step, value in found.items() if value is not None)
    return max(measured, key=lambda at: at[1] if maximize else -at[1], default=None)


def of_curves(summaries: Iterable[Mapping[str, Any]], tag: str) -> list[Report]:
    """The curve of that name, in any case, from the summaries (`CurveSummary.json`) of a job's primary, run by run."""
    points: list[Report] = []
    for summary in summaries:
        for curve in _curves(summary):
            if str(curve["name"]).casefold() == tag.casefold():
                newest = (curve["step"], curve["value"])
                # A value that is not finite is a text there.
                reported = (*curve.get("points", ()), newest)
                points += [(step, None if isinstance(value, str) else float(value)) for step, value in reported]
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
