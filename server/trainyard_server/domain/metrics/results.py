"""Results of a job in numbers: the last and the best value of each metric. Pure."""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from trainyard_protocol.lines.progress import lower_is_better
from trainyard_server.domain.metrics.series import Points, joined


@dataclass(frozen=True, slots=True)
class MetricResult:
    """A metric of one replica: (step, value) of its last point and of its best one. `best` is None where no value is
    finite, and where the name does not tell whether lower or higher is better. `points` may be thinned."""

    name: str
    task: str
    last: tuple[int, float]
    best: tuple[int, float] | None
    points: Points


def result(name: str, task: str, runs: Sequence[tuple[int, Points]], limit: int) -> MetricResult | None:
    """The result of a metric over the runs of a job, with at most `limit` points; None without a point."""
    points = _in_one(joined(runs))
    if not points:
        return None
    last = (points.steps[-1], points.values[-1])
    return MetricResult(name, task, last, _best(name, points), points.thinned(limit))


def _best(name: str, points: Points) -> tuple[int, float] | None:
    lower = lower_is_better(name)
    values = [value for value in points.values if math.isfinite(value)]
    if lower is None or not values:
        return None
    best = min(values) if lower else max(values)
    return points.steps[points.values.index(best)], best


def _in_one(parts: Sequence[tuple[int, Points]]) -> Points:
    """The points of all runs, without the steps that a run had trained beyond the first step of the next one."""
    kept = [before.between(None, after.steps[0] - 1) for (_, before), (_, after) in pairwise(parts)]
    kept += [points for _, points in parts[-1:]]
    if len(kept) == 1:
        return kept[0]
    return Points(
        array("q", [step for points in kept for step in points.steps]),
        array("d", [value for points in kept for value in points.values]),
        array("d", [time for points in kept for time in points.times]),
        any(points.odd for points in kept),
    )
