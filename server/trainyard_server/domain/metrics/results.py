"""Results of a job in numbers: the last and the best value of each metric. Pure."""

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from trainyard_protocol.lines.progress import lower_is_better
from trainyard_server.domain.metrics.series import Points, joined
from trainyard_server.domain.metrics.sources import MetricSource
from trainyard_server.domain.metrics.summary import (
    FURTHER,
    METRICS,
    POINTS,
    CurveSummary,
    MetricSummary,
    SummaryCurve,
    ordered,
)


@dataclass(frozen=True, slots=True)
class MetricResult:
    """A metric of one replica: (step, value) of its last point and of its best one, and its extremes. `best` is None
    where no value is finite, and where the name does not tell whether lower or higher is better; `lowest` and `highest`
    are None where no value is finite. `run` and `time` (seconds since 1970) are of the last point."""

    name: str
    task: str
    run: int
    last: tuple[int, float]
    time: float
    best: tuple[int, float] | None
    lowest: float | None
    highest: float | None
    points: Points
    """All points, over the runs."""

    def summary(self, source: MetricSource) -> MetricSummary:
        """The result as the tables of jobs have it."""
        step, value = self.last
        shown = value if math.isfinite(value) else None
        return MetricSummary(step, shown, self.lowest, self.highest, source, round(self.time * 1000), self.run)


def result(name: str, task: str, runs: Sequence[tuple[int, Points]]) -> MetricResult | None:
    """The result of a metric over the runs of a job; None without a point. Every surface shows this one."""
    parts = joined(runs)
    points = _in_one(parts)
    if not points:
        return None
    finite = [value for value in points.values if math.isfinite(value)]
    lowest, highest = min(finite, default=None), max(finite, default=None)
    lower = lower_is_better(name)
    value = None if lower is None else lowest if lower else highest
    best = None if value is None else (points.steps[points.values.index(value)], value)
    last = (points.steps[-1], points.values[-1])
    return MetricResult(name, task, parts[-1][0], last, points.times[-1], best, lowest, highest, points)


def settled(stored: Mapping[str, Any] | None, results: Sequence[MetricResult]) -> dict[str, Any] | None:
    """The digest of a replica (`CurveSummary.json`) with its results in place of the values that were summed up while
    it ran."""
    digest = CurveSummary.of(stored)
    digest.curves, digest.further, digest.ranges = {}, {}, {}
    by_name = {result.name: result for result in results}
    for count, name in enumerate(ordered(by_name)[: METRICS + FURTHER]):
        own = by_name[name]
        if count >= METRICS:
            digest.further[name] = own.last
        else:
            few = own.points.thinned(POINTS)
            points = list(zip(few.steps, few.values, strict=True))
            digest.curves[name] = SummaryCurve(*own.last, len(own.points), 1, points)
        if own.lowest is not None and own.highest is not None:
            digest.ranges[name] = own.lowest, own.highest
    return digest.json()


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
