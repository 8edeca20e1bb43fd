"""Metrics as arrays: all points, however many the server gives in one answer."""

import math

import pytest

from trainyard.metrics import read
from trainyard_protocol.answers.metrics import MetricSeries, MetricsView

LIMIT = 10
CURVES = {
    ("loss", "master-replica-0"): [(step, 1.0 / (step + 1)) for step in range(100)],
    ("rate", "worker-replica-0"): [(1, math.nan), (2, 7.0)],
    ("rate", "worker-replica-1"): [(1, 1.0), (50, 1.0)],
}


def fetch(first: int | None, last: int | None) -> MetricsView:
    """The first and last points alone where there are more than LIMIT."""
    series = []
    for (name, task), points in CURVES.items():
        asked = [one for one in points if (first or 0) <= one[0] <= (math.inf if last is None else last)]
        few = asked if len(asked) <= LIMIT else [asked[0], asked[-1]]
        steps, values = tuple(step for step, _ in few), tuple(value for _, value in few)
        if asked:
            one = MetricSeries(name=name, task=task, run=1, steps=steps, values=values, times=steps, total=len(asked))
            series.append(one)
    tasks = ("master-replica-0", "worker-replica-0", "worker-replica-1")
    return MetricsView(metrics=tuple(series), names=("loss", "rate"), tasks=tasks)


def test_curve_of_too_many_points_is_read_in_parts() -> None:
    metrics = read(fetch, None, None)
    assert list(metrics) == ["loss", "rate"]
    assert list(zip(metrics["loss"].steps, metrics["loss"].values, strict=True)) == CURVES["loss", "master-replica-0"]
    assert list(read(fetch, 20, 29)["loss"].steps) == list(range(20, 30))


def test_metric_is_that_of_the_first_replica_and_its_extremes_are_finite() -> None:
    rate = read(fetch, None, None)["rate"]
    assert (rate.task, len(rate)) == ("worker-replica-0", 2)
    assert rate.last == rate.lowest == rate.highest == 7.0


def test_missing_metric_is_answered_with_the_names_of_the_job() -> None:
    with pytest.raises(KeyError, match=r"No metric acc\. This job has: loss, rate\."):
        read(fetch, None, None)["acc"]
    with pytest.raises(KeyError, match=r"No point of rate was requested\. metrics\(\) without arguments has all"):
        read(fetch, 60, 70)["rate"]
    assert read(fetch, None, None).get("acc") is None
