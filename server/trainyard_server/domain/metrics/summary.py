"""Summary of the metrics of a replica, in a few kilobytes: the source of spark lines. Pure.

For each metric it has the newest value and every `every`-th point. When there are more than `POINTS`, every second one
is removed and `every` doubles, so a summary depends only on the points, not on how they were batched.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from trainyard_protocol.lines.progress import ProgressEvent
from trainyard_protocol.views.views import number

METRICS = 8
POINTS = 40

FURTHER = 100
"""Metrics beyond METRICS, of which only the newest value is kept."""

_FIRST = ("loss", "train_loss")


@dataclass(slots=True)
class _Curve:
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
    newest step and value of metrics that have no curve."""

    taken: int = 0
    epoch: float | None = None
    epochs: float | None = None
    curves: dict[str, _Curve] = field(default_factory=dict)
    further: dict[str, tuple[int, float]] = field(default_factory=dict)

    def add(self, mark: ProgressEvent) -> None:
        if mark.epoch is not None:
            self.epoch = mark.epoch
        if mark.epochs is not None:
            self.epochs = mark.epochs
        if mark.step is None:
            return
        for name, value in mark.metrics.items():
            curve = self.curves.get(name)
            if curve is None:
                if not self._has_room(name):
                    if name in self.further or len(self.further) < FURTHER:
                        self.further[name] = (mark.step, value)
                        self.taken += 1
                    continue
                self.further.pop(name, None)
                curve = self.curves[name] = _Curve(mark.step, value)
            curve.add(mark.step, value)
            self.taken += 1

    def json(self) -> dict[str, Any] | None:
        """The value of the replica's column: a `views.MetricsDigest` and a little more. None if it is empty."""
        if not self.curves and not self.further and self.epoch is None and self.epochs is None:
            return None
        names = ordered(self.curves)
        further = [{"name": name, "step": step, "value": number(value)} for name, (step, value) in self.further.items()]
        return {
            "main": names[0] if names else "",
            "epoch": self.epoch,
            "epochs": self.epochs,
            "taken": self.taken,
            "metrics": [_curve_json(name, self.curves[name]) for name in names],
        } | ({"further": further} if further else {})

    @classmethod
    def of(cls, stored: Mapping[str, Any] | None) -> Self:
        """The inverse of `json`."""
        if not stored:
            return cls()
        curves = {
            row["name"]: _Curve(
                row["step"],
                float(row["value"]),
                row["count"],
                row["every"],
                [(step, float(value)) for step, value in row["points"]],
            )
            for row in stored["metrics"]
        }
        further = {row["name"]: (row["step"], float(row["value"])) for row in stored.get("further", ())}
        return cls(stored["taken"], stored["epoch"], stored["epochs"], curves, further)

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


def _rank(name: str) -> int:
    folded = name.casefold()
    if folded in _FIRST:
        return _FIRST.index(folded)
    return len(_FIRST) if "loss" in folded else len(_FIRST) + 1


def _curve_json(name: str, curve: _Curve) -> dict[str, Any]:
    return {
        "name": name,
        "step": curve.step,
        "value": number(curve.value),
        "count": curve.count,
        "every": curve.every,
        "points": [[step, number(value)] for step, value in curve.points],
    }
