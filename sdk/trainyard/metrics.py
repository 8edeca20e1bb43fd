"""Metrics of a job as arrays."""

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from trainyard_protocol.answers.metrics import MetricSeries, MetricsView

POINTS = 10_000
"""Of one curve in one answer, the most that the server gives."""

_MOST_NAMES = 20
"""In a message."""

Fetch = Callable[[int | None, int | None], MetricsView]
"""The curves between two steps, at most POINTS of each."""


@dataclass(frozen=True, slots=True, repr=False)
class Metric:
    """One metric of one replica: `values[i]` at `steps[i]`, measured `times[i]` seconds after the job's first point, in
    run `runs[i]`. The steps increase.

    The arrays have the buffer protocol: `numpy.asarray(metric.values)` copies nothing.
    """

    name: str
    task: str
    steps: "array[int]"
    values: "array[float]"
    times: "array[float]"
    runs: "array[int]"

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"<Metric {self.name} of {self.task}: {len(self)} points, last {self.last:g}>"

    @property
    def last(self) -> float:
        return self.values[-1]

    @property
    def lowest(self) -> float:
        """NaN where no value is finite."""
        return min(filter(math.isfinite, self.values), default=math.nan)

    @property
    def highest(self) -> float:
        """NaN where no value is finite."""
        return max(filter(math.isfinite, self.values), default=math.nan)


class Metrics(Mapping[str, Metric]):
    """Metrics by name, the most important first. `reported` has the names of all metrics of the job."""

    def __init__(self, metrics: Iterable[Metric], reported: Iterable[str] = ()) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._reported = tuple(reported)

    def __getitem__(self, name: str) -> Metric:
        try:
            return self._metrics[name]
        except KeyError:
            raise KeyError(self._missing(name)) from None

    def _missing(self, name: str) -> str:
        if name in self._reported:
            return f"No point of {name} was requested. metrics() without arguments has all points."
        if not self._reported:
            return f"No metric {name}. This job has reported no metrics."
        others = len(self._reported) - _MOST_NAMES
        more = f" and {others} more" if others > 0 else ""
        return f"No metric {name}. This job has: {', '.join(self._reported[:_MOST_NAMES])}{more}."

    def __iter__(self) -> Iterator[str]:
        return iter(self._metrics)

    def __len__(self) -> int:
        return len(self._metrics)

    def __repr__(self) -> str:
        return f"<Metrics: {', '.join(self._metrics) or 'none'}>"

    def columns(self) -> dict[str, list[int] | list[float] | list[str]]:
        """All points as a long table, for `pandas.DataFrame(job.metrics().columns())`."""
        metrics = list(self._metrics.values())
        return {
            "metric": [metric.name for metric in metrics for _ in metric.steps],
            "step": [step for metric in metrics for step in metric.steps],
            "value": [value for metric in metrics for value in metric.values],
            "time": [time for metric in metrics for time in metric.times],
            "run": [run for metric in metrics for run in metric.runs],
        }


def read(fetch: Fetch, from_step: int | None, to_step: int | None) -> Metrics:
    """All points between two steps: a curve of too many is requested in parts. Of each metric, the first replica that
    reports it."""
    parts: dict[tuple[str, str], list[MetricSeries]] = {}
    views = list(_views(fetch, from_step, to_step))
    for view in views:
        for curve in view.metrics:
            parts.setdefault((curve.name, curve.task), []).append(curve)
    replicas = {
        name: next(task for task in views[-1].tasks if (name, task) in parts)
        for name in views[-1].names
        if any(name == existing for existing, _ in parts)
    }
    return Metrics((_metric(parts[name, task]) for name, task in replicas.items()), views[-1].names)


def _views(fetch: Fetch, from_step: int | None, to_step: int | None) -> Iterator[MetricsView]:
    view = fetch(from_step, to_step)
    while not view.complete:  # a long log is read in parts
        view = fetch(from_step, to_step)
    cut = [curve for curve in view.metrics if curve.total > len(curve.steps)]
    if not cut:
        yield view
        return
    first, last = min(curve.steps[0] for curve in cut), max(curve.steps[-1] for curve in cut)
    middle = (first + last) // 2
    yield from _views(fetch, from_step, middle)
    yield from _views(fetch, middle + 1, to_step)


def _metric(parts: list[MetricSeries]) -> Metric:
    points = sorted(
        (step, value, time, part.run)
        for part in parts
        for step, value, time in zip(part.steps, part.values, part.times, strict=True)
    )
    return Metric(
        parts[0].name,
        parts[0].task,
        array("q", [step for step, _, _, _ in points]),
        array("d", [value for _, value, _, _ in points]),
        array("d", [time for _, _, time, _ in points]),
        array("q", [run for _, _, _, run in points]),
    )
