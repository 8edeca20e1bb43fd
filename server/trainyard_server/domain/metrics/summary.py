"""Summary of the metrics of a replica, in a few kilobytes: the source of spark lines. Pure.

For each metric it has the newest value and every `every`-th point. When there are more than `POINTS`, every second one
is removed and `every` doubles, so a summary depends only on the points, not on how they were batched.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from trainyard_protocol.answers.metrics import number
from trainyard_protocol.lines.progress import ProgressEvent, is_validation, lower_is_better
from trainyard_server.domain.metrics.sources import MetricSource, source_of

METRICS = 8
POINTS = 40

FURTHER = 100
"""Metrics beyond METRICS, of which only the newest value is kept."""

_FIRST = ("loss", "train_loss")


class MetricSummary(NamedTuple):
    """The last value of a metric with its step, and its extremes. Values that are not finite are None. `run` is the
    number of the job's run that has the last value, `time_ms` its time since 1970, 0 where it does not count."""

    step: int
    last: float | None
    lowest: float | None
    highest: float | None
    source: MetricSource = MetricSource.PRINTED
    time_ms: int = 0
    run: int = 0

    @classmethod
    def of(
        cls,
        step: int,
        last: float,
        values: Iterable[float] = (),
        *,
        source: MetricSource = MetricSource.PRINTED,
        time_ms: int = 0,
        run: int = 0,
    ) -> Self:
        """The summary of a curve with these values."""
        finite = [value for value in (last, *values) if math.isfinite(value)]
        shown = last if math.isfinite(last) else None
        return cls(step, shown, min(finite, default=None), max(finite, default=None), source, time_ms, run)

    def best(self, name: str) -> float | None:
        """The lowest or the highest value, by the words of the metric's name; None where they do not tell."""
        lower = lower_is_better(name)
        return None if lower is None else self.lowest if lower else self.highest

    def joined(self, later: "MetricSummary") -> "MetricSummary":
        """The summary of two parts of a metric: of the better source alone, else the last value by run, step and time,
        with the extremes of both."""
        if self.source is not later.source:
            return min(self, later, key=lambda part: part.source)
        last = max(later, self, key=lambda part: (part.run, part.step, part.time_ms))
        lowest = [value for value in (self.lowest, later.lowest) if value is not None]
        highest = [value for value in (self.highest, later.highest) if value is not None]
        return last._replace(lowest=min(lowest, default=None), highest=max(highest, default=None))


@dataclass(slots=True)
class SummaryCurve:
    """The last point of a metric, and every `every`-th of its `count` points."""

    step: int
    value: float
    count: int = 0
    every: int = 1
    points: list[tuple[int, float]] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        if self.count and step <= self.step:
            # The program resumed from a checkpoint: later points of before are removed.
            while self.points and self.points[-1][0] >= step:
                self.points.pop()
            self.count = len(self.points) * self.every
        if self.count % self.every == 0:
            self.points.append((step, value))
        self.count += 1
        self.step, self.value = step, value
        if len(self.points) > POINTS:
            del self.points[1::2]
            self.every *= 2


@dataclass(slots=True)
class CurveSummary:
    """The curves of one replica. `taken` counts its points, to find the fuller of two summaries. `further` has the
    newest step and value of metrics that have no curve, `ranges` the lowest and highest finite value of all, `guessed`
    the names of those that no line had with a step: the first one that has replaces what was guessed."""

    taken: int = 0
    epoch: float | None = None
    epochs: float | None = None
    curves: dict[str, SummaryCurve] = field(default_factory=dict)
    further: dict[str, tuple[int, float]] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    guessed: set[str] = field(default_factory=set)

    def add(self, mark: ProgressEvent) -> None:
        if mark.epoch is not None:
            self.epoch = mark.epoch
        if mark.epochs is not None:
            self.epochs = mark.epochs
        if mark.step is None:
            return
        for name, value in mark.metrics.items():
            if not self._accepts(name, source_of(mark)):
                continue
            curve = self.curves.get(name)
            if curve is None:
                if not self._has_room(name):
                    if name in self.further or len(self.further) < FURTHER:
                        self.further[name] = (mark.step, value)
                        self.taken += 1
                        self._widen(name, value)
                    continue
                self.further.pop(name, None)
                curve = self.curves[name] = SummaryCurve(mark.step, value)
            curve.add(mark.step, value)
            self.taken += 1
            self._widen(name, value)

    def summaries(self) -> Iterator[tuple[str, MetricSummary]]:
        """Each metric with its last value and its extremes."""
        newest = {name: (curve.step, curve.value) for name, curve in self.curves.items()}
        for name, (step, value) in (newest | self.further).items():
            source = MetricSource.GUESSED if name in self.guessed else MetricSource.PRINTED
            yield name, MetricSummary.of(step, value, self.ranges.get(name, ()), source=source)

    def _accepts(self, name: str, source: MetricSource) -> bool:
        """Whether a point from this source counts. Removes what was guessed before a point with a step."""
        is_guess = source is MetricSource.GUESSED
        if name not in self.curves and name not in self.further:
            if is_guess:
                self.guessed.add(name)
            return True
        if name in self.guessed and not is_guess:
            self.guessed.discard(name)
            for values in (self.curves, self.further, self.ranges):
                values.pop(name, None)
        return is_guess is (name in self.guessed)

    def _widen(self, name: str, value: float) -> None:
        if math.isfinite(value):
            lowest, highest = self.ranges.get(name, (value, value))
            self.ranges[name] = min(lowest, value), max(highest, value)

    def json(self) -> dict[str, Any] | None:
        """The value of the replica's column: a `views.MetricsDigest` and a little more. None if it is empty."""
        if not self.curves and not self.further and self.epoch is None and self.epochs is None:
            return None
        names = ordered(self.curves)
        further = [{"name": name, "step": step, "value": number(value)} for name, (step, value) in self.further.items()]
        ranges = {name: list(values) for name, values in self.ranges.items()}
        return (
            {
                "main": names[0] if names else "",
                "epoch": self.epoch,
                "epochs": self.epochs,
                "taken": self.taken,
                "metrics": [_curve_json(name, self.curves[name]) for name in names],
            }
            | ({"further": further} if further else {})
            | ({"ranges": ranges} if ranges else {})
            | ({"guessed": sorted(self.guessed)} if self.guessed else {})
        )

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Self:
        """The inverse of `json`."""
        if not stored:
            return cls()
        curves = {
            row["name"]: SummaryCurve(
                row["step"],
                float(row["value"]),
                row["count"],
                row["every"],
                [(step, float(value)) for step, value in row["points"]],
            )
            for row in stored["metrics"]
        }
        further = {row["name"]: (row["step"], float(row["value"])) for row in stored.get("further", ())}
        ranges = {name: (lowest, highest) for name, (lowest, highest) in stored.get("ranges", {}).items()}
        guessed = set(stored.get("guessed", ()))
        return cls(stored["taken"], stored["epoch"], stored["epochs"], curves, further, ranges, guessed)

    def _has_room(self, name: str) -> bool:
        """Whether the metric fits. A loss replaces a less important metric."""
        if len(self.curves) < METRICS:
            return True
        last = ordered(self.curves)[-1]
        if _rank(last) <= _rank(name):
            return False
        removed = self.curves.pop(last)
        self.further[last] = (removed.step, removed.value)
        return True


def ordered(names: Iterable[str]) -> list[str]:
    """The names by importance: the loss, other losses, then the rest as given."""
    return sorted(names, key=_rank)


def rated(names: Iterable[str]) -> list[str]:
    """Those whose names say what is better, by importance to judge a job by: metrics of examples that it does not train
    on, then the rest, each in the order of `ordered`."""
    directed = [name for name in ordered(names) if lower_is_better(name) is not None]
    return sorted(directed, key=lambda name: not is_validation(name))


def _rank(name: str) -> int:
    folded = name.casefold()
    if folded in _FIRST:
        return _FIRST.index(folded)
    return len(_FIRST) if "loss" in folded else len(_FIRST) + 1


def _curve_json(name: str, curve: SummaryCurve) -> dict[str, Any]:
    return {
        "name": name,
        "step": curve.step,
        "value": number(curve.value),
        "count": curve.count,
        "every": curve.every,
        "points": [[step, number(value)] for step, value in curve.points],
    }
