"""What a replica has measured, in a few kilobytes: what a list of jobs draws its spark lines from. Pure.

Of each metric the newest value is kept, and of every `every`-th point the first, the `every`-th, ...: when there are
more than `POINTS`, every other one goes and `every` doubles. So a digest depends on the points alone, not on how
they came.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from trainyard_protocol.progress import Mark
from trainyard_protocol.views import number

METRICS = 8
POINTS = 40

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
            # It is trained again from here, after something went wrong: what came of it before is no more.
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
class Digest:
    """Of one replica. `taken`: how many points it has seen, to tell the fuller one of two."""

    taken: int = 0
    epoch: float | None = None
    epochs: float | None = None
    curves: dict[str, _Curve] = field(default_factory=dict)

    def add(self, mark: Mark) -> None:
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
                    continue
                curve = self.curves[name] = _Curve(mark.step, value)
            curve.add(mark.step, value)
            self.taken += 1

    def json(self) -> dict[str, Any] | None:
        """As the replica's row keeps it, a `views.MetricsDigest` and a little more; None where there is nothing."""
        if not self.curves and self.epoch is None and self.epochs is None:
            return None
        names = ordered(self.curves)
        return {
            "main": names[0] if names else "",
            "epoch": self.epoch,
            "epochs": self.epochs,
            "taken": self.taken,
            "metrics": [_curve_json(name, self.curves[name]) for name in names],
        }

    @classmethod
    def of(cls, kept: Mapping[str, Any] | None) -> Self:
        """The inverse of `json`."""
        if not kept:
            return cls()
        curves = {
            one["name"]: _Curve(
                one["step"],
                float(one["value"]),
                one["count"],
                one["every"],
                [(step, float(value)) for step, value in one["points"]],
            )
            for one in kept["metrics"]
        }
        return cls(kept["taken"], kept["epoch"], kept["epochs"], curves)

    def _has_room(self, name: str) -> bool:
        """A loss takes the place of what matters less."""
        if len(self.curves) < METRICS:
            return True
        last = ordered(self.curves)[-1]
        if _rank(last) <= _rank(name):
            return False
        del self.curves[last]
        return True


def ordered(names: Iterable[str]) -> list[str]:
    """By what people look at first: the loss, other losses, then as they are given."""
    return sorted(names, key=_rank)


def _rank(name: str) -> int:
    if name in _FIRST:
        return _FIRST.index(name)
    return len(_FIRST) if "loss" in name.casefold() else len(_FIRST) + 1


def _curve_json(name: str, curve: _Curve) -> dict[str, Any]:
    return {
        "name": name,
        "step": curve.step,
        "value": number(curve.value),
        "count": curve.count,
        "every": curve.every,
        "points": [[step, number(value)] for step, value in curve.points],
    }
