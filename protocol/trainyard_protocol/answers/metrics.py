"""Answers about what a job measured: curves, digests, values."""

import math
from datetime import datetime
from typing import Annotated

from pydantic import PlainSerializer

from trainyard_protocol.message import Wire


def number(value: float) -> float | str:
    """A JSON value: "NaN", "Infinity" and "-Infinity" are strings, as in all of Google's APIs."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


Number = Annotated[float, PlainSerializer(number, return_type=float | str, when_used="json")]
"""A float that may not be finite: see `number`."""


class CurveDigest(Wire):
    """A metric in short: its newest value, and some points (step, value) over all its steps."""

    name: str
    step: int
    value: Number
    points: tuple[tuple[int, Number], ...] = ()


class MetricsDigest(Wire):
    """The metrics of a replica in short: at most 8, the most important first, with 40 points each. `main` is the name
    of the first, or "". `epoch` of `epochs` is as the program counts."""

    main: str = ""
    epoch: int | float | None = None
    epochs: int | float | None = None
    metrics: tuple[CurveDigest, ...] = ()

    def curve(self, name: str = "") -> CurveDigest | None:
        """The curve of this metric, or of the main one; None without one."""
        return next((curve for curve in self.metrics if curve.name == (name or self.main)), None)


class MetricSeries(Wire):
    """One metric of one replica in one run: point i is `values[i]` at `steps[i]`, `times[i]` seconds after the `start`
    of its MetricsView. The steps increase. Of `total` points too many are thinned."""

    name: str
    task: str
    run: int
    steps: tuple[int, ...]
    values: tuple[Number, ...]
    times: tuple[float, ...]
    total: int


class MetricResultView(Wire):
    """A metric of one replica in numbers: its last value with its step and its run, its best value with the step, and
    its extremes. `best` is None where the name does not tell whether lower or higher is better."""

    name: str
    task: str
    run: int
    step: int
    last: Number
    best: float | None = None
    best_step: int | None = None
    lowest: float | None = None
    highest: float | None = None


class MetricsView(Wire):
    """The curves of a job. A step that a later run trained again counts for that run alone. `results` are those of each
    metric and replica, over all points and runs.

    `names` has all its metrics, the most important first; `main` is the first, or "". `step`, `steps`, `epoch` and
    `epochs` are from the newest lines. `epoch_starts`: the first reported step of each epoch. With `version` as
    `after`, an answer has only the series that changed since. `complete` is false while a part of the log is not read
    yet: ask again. `thinned`: some points were removed; `left_out`: there were too many curves.
    """

    metrics: tuple[MetricSeries, ...] = ()
    results: tuple[MetricResultView, ...] = ()
    names: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    main: str = ""
    start: datetime | None = None
    step: int | None = None
    steps: int | None = None
    epoch: int | float | None = None
    epochs: int | float | None = None
    epoch_starts: tuple[tuple[int, float], ...] = ()
    version: str = ""
    complete: bool = True
    thinned: bool = False
    left_out: bool = False


class TrialMetric(Wire):
    """The study's metric at the last step for which a trial has reported it."""

    name: str
    step: int
    value: float


class JobMetric(Wire):
    """The last value of a job's metric with its step, and its best one, as the list of jobs has them."""

    name: str
    step: int
    last: Number
    best: float | None = None
