"""Charts of a job's metrics, each with its variants such as `val_loss`, as SVG paths. Pure."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard_server.dashboard.frame import Frame
from trainyard_server.domain.metrics.results import MetricResult

WIDTH, HEIGHT = 600.0, 150.0
"""View box of the chart; the page stretches it."""

_MARGIN = 4.0
_LINES = 3
# As in curves.js.
_VARIANT = re.compile(r"(held_out|validation|val|valid|eval|test|dev|training|train)[_/.-](.+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ResultLine:
    """One curve, which ends at `end` in the view box. `number` picks its colour."""

    name: str
    path: str
    end: tuple[float, float]
    number: int


@dataclass(frozen=True, slots=True)
class ResultChart:
    """Curves from `low` to `high`, over the steps from `first` to `last`. `base` is what their names have in common.
    `offsets` (steps after `first`) and `values` are the points of the first line, separated by commas."""

    name: str
    base: str
    lines: Sequence[ResultLine]
    low: float
    high: float
    first: int
    last: int
    offsets: str
    values: str


def result_chart(results: Sequence[MetricResult]) -> ResultChart | None:
    """The chart of the first metric; None where it has fewer than two finite points."""
    return _chart(results) if results else None


def first_charts(results: Sequence[MetricResult]) -> list[ResultChart]:
    """A chart for the metrics that belong together, in the order of the first of each."""
    groups: dict[str, list[MetricResult]] = {}
    for result in results:
        groups.setdefault(_base(result.name), []).append(result)
    charts = [_chart(group) for group in groups.values()]
    return [chart for chart in charts if chart is not None]


def _chart(results: Sequence[MetricResult]) -> ResultChart | None:
    base = _base(results[0].name)
    drawn = [line for line in results if _base(line.name) == base and len(_finite(line)) > 1][:_LINES]
    if results[0] not in drawn:
        return None
    curves = [_finite(line) for line in drawn]
    steps = [step for curve in curves for step, _ in curve]
    values = [value for curve in curves for _, value in curve]
    low, high, first, last = min(values), max(values), min(steps), max(steps)
    frame = Frame(WIDTH, HEIGHT, first, last, low, high, _MARGIN)
    lines = [
        ResultLine(line.name, frame.path(curve), frame.at(*curve[-1]), number)
        for number, (line, curve) in enumerate(zip(drawn, curves, strict=True), start=1)
    ]
    offsets = ",".join(str(step - first) for step, _ in curves[0])
    return ResultChart(
        results[0].name,
        base,
        lines,
        low,
        high,
        first,
        last,
        offsets,
        ",".join(f"{value:.6g}" for _, value in curves[0]),
    )


def _finite(result: MetricResult) -> list[tuple[int, float]]:
    points = zip(result.points.steps, result.points.values, strict=True)
    return [(step, value) for step, value in points if math.isfinite(value)]


def _base(name: str) -> str:
    match = _VARIANT.fullmatch(name)
    return match[2] if match else name
