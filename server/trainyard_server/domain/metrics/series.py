"""Curves of numbers in arrays: thinned so that peaks stay, and joined over runs. Pure."""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

LEAST = 10
"""The least number of points that a curve is thinned to."""


def _integers() -> "array[int]":
    return array("q")


def _floats() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Points:
    """Points in the order of their steps, one for each step. `times` are seconds since 1970. `odd`: some values may not
    be finite."""

    steps: "array[int]" = field(default_factory=_integers)
    values: "array[float]" = field(default_factory=_floats)
    times: "array[float]" = field(default_factory=_floats)
    odd: bool = False

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[int, float, float]]:
        return zip(self.steps, self.values, self.times, strict=False)  # another thread may append

    def between(self, from_step: int | None, to_step: int | None) -> Self:
        """The points from one step to another, both included."""
        start = 0 if from_step is None else bisect_left(self.steps, from_step)
        stop = len(self) if to_step is None else bisect_right(self.steps, to_step)
        return self if (start, stop) == (0, len(self)) else self._cut(start, stop)

    def without(self, first: int, last: int) -> Self:
        """The points before one step and after another."""
        start, stop = bisect_left(self.steps, first), bisect_right(self.steps, last)
        if start >= stop:
            return self
        before, after = self._cut(0, start), self._cut(stop, len(self))
        before.steps.extend(after.steps)
        before.values.extend(after.values)
        before.times.extend(after.times)
        return before

    def thinned(self, limit: int) -> Self:
        """At most `limit` points (LEAST or more): the first, the last, and of each interval the lowest, the highest and
        one that is not finite."""
        if len(self) <= limit:
            return self
        chosen = sorted(_chosen(self.values, limit, self.odd))
        return type(self)(
            array("q", [self.steps[i] for i in chosen]),
            array("d", [self.values[i] for i in chosen]),
            array("d", [self.times[i] for i in chosen]),
            self.odd,
        )

    def _cut(self, start: int, stop: int) -> Self:
        return type(self)(self.steps[start:stop], self.values[start:stop], self.times[start:stop], self.odd)


@dataclass(slots=True)
class Curve:
    """Points in order of arrival. Of several at one step the last counts."""

    _points: Points = field(default_factory=Points)
    _in_order: bool = True

    def __len__(self) -> int:
        return len(self._points)

    def add(self, step: int, value: float, time: float) -> None:
        points = self._points
        if points.steps and step <= points.steps[-1]:
            if step == points.steps[-1]:
                points.values[-1], points.times[-1] = value, time
                points.odd = points.odd or not math.isfinite(value)
                return
            self._in_order = False
        points.steps.append(step)
        points.values.append(value)
        points.times.append(time)
        points.odd = points.odd or not math.isfinite(value)

    def points(self) -> Points:
        if not self._in_order:
            steps = self._points.steps
            order = sorted(range(len(steps)), key=steps.__getitem__)  # keeps the order of those at one step
            last = [i for i, j in zip(order, [*order[1:], -1], strict=True) if j < 0 or steps[i] != steps[j]]
            self._points = Points(
                array("q", [steps[i] for i in last]),
                array("d", [self._points.values[i] for i in last]),
                array("d", [self._points.times[i] for i in last]),
                self._points.odd,
            )
            self._in_order = True
        return self._points

    def thin(self, limit: int) -> None:
        """Thin the curve itself."""
        self._points = self.points().thinned(limit)


def joined(runs: Sequence[tuple[int, Points]]) -> list[tuple[int, Points]]:
    """Join a metric of a replica over its runs. Steps that a later run trained again, from its first to its last, are
    removed from the earlier runs."""
    parts: list[tuple[int, Points]] = []
    later: list[tuple[int, int]] = []
    for run, points in sorted(runs, key=lambda numbered: numbered[0], reverse=True):
        left = points
        for first, last in later:
            left = left.without(first, last)
        if points:
            later.append((points.steps[0], points.steps[-1]))
        if left:
            parts.append((run, left))
    return parts[::-1]


def _chosen(values: "array[float]", limit: int, odd: bool) -> set[int]:
    count = len(values)
    chosen = {0, count - 1}
    buckets = max(1, (limit - 2) // (3 if odd else 2))
    for bucket in range(buckets):
        part: Sequence[int] = range(bucket * count // buckets, (bucket + 1) * count // buckets)
        if odd:
            strange = [i for i in part if not math.isfinite(values[i])]
            chosen.update(strange[:1])
            if strange:
                part = [i for i in part if math.isfinite(values[i])]
        if part:
            chosen.add(min(part, key=values.__getitem__))
            chosen.add(max(part, key=values.__getitem__))
    return chosen
