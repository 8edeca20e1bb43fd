"""Summary of the curves of a replica: a few kilobytes, whatever the program says."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.answers.metrics import MetricsDigest
from trainyard_protocol.lines.progress import ProgressEvent
from trainyard_server.domain.metrics.sources import MetricSource
from trainyard_server.domain.metrics.summary import METRICS, POINTS, CurveSummary, MetricSummary

VALUES = st.one_of(st.floats(), st.integers(-10, 10).map(float))
EVENTS = st.builds(
    ProgressEvent,
    event=st.just("progress"),
    step=st.one_of(st.none(), st.integers(0, 200)),
    epoch=st.one_of(st.none(), st.integers(0, 5)),
    epochs=st.one_of(st.none(), st.just(5)),
    metrics=st.dictionaries(st.sampled_from(["loss", "train_loss", "val_loss", *(f"m{n}" for n in range(12))]), VALUES),
)


def digest(*events: ProgressEvent) -> CurveSummary:
    summary = CurveSummary()
    for mark in events:
        summary.add(mark)
    return summary


def curve(count: int, name: str = "loss") -> list[ProgressEvent]:
    return [ProgressEvent("progress", step, metrics={name: float(step)}) for step in range(1, count + 1)]


def view(summary: CurveSummary) -> MetricsDigest:
    return MetricsDigest.model_validate(summary.json())


def test_a_step_that_comes_again_takes_back_what_came_after_it() -> None:
    events = [
        *curve(30),
        ProgressEvent("progress", 10, metrics={"loss": 7.0}),
        ProgressEvent("progress", 11, metrics={"loss": 8.0}),
    ]
    one = view(digest(*events)).curve()
    assert one is not None
    assert one.points == (*((step, float(step)) for step in range(1, 10)), (10, 7.0), (11, 8.0))


def test_what_is_no_number_is_a_string_in_json() -> None:
    strange = [math.nan, math.inf, -math.inf]
    events = [ProgressEvent("progress", step, metrics={"loss": value}) for step, value in enumerate(strange)]
    stored = digest(*events).json()
    assert stored is not None
    assert stored["metrics"][0]["points"] == [[0, "NaN"], [1, "Infinity"], [2, "-Infinity"]]
    one = MetricsDigest.model_validate(stored).curve()
    assert one is not None
    assert (math.isnan(one.points[0][1]), one.points[1][1], one.value) == (True, math.inf, -math.inf)
    assert json.loads(MetricsDigest.model_validate(stored).model_dump_json())["metrics"][0]["value"] == "-Infinity"


@given(st.lists(EVENTS, max_size=200))
def test_a_digest_is_bounded_and_goes_on_from_what_was_kept(events: list[ProgressEvent]) -> None:
    stored = None
    for mark in events:
        summary = CurveSummary.of(stored)  # as after a restart of the server, at every line
        summary.add(mark)
        stored = json.loads(json.dumps(summary.json(), allow_nan=False))
    assert stored == json.loads(json.dumps(digest(*events).json()))
    for one in stored["metrics"] if stored else ():
        assert len(one["points"]) <= POINTS
        steps = [step for step, _ in one["points"]]
        assert steps == sorted(set(steps))
    assert len(stored["metrics"] if stored else ()) <= METRICS


def test_each_metric_has_its_last_value_and_its_extremes() -> None:
    lines = [("loss", 3.0), ("loss", 1.0), ("loss", math.nan), ("accuracy", 0.5)]
    summary = digest(
        *(ProgressEvent("progress", step, metrics={name: value}) for step, (name, value) in enumerate(lines))
    )
    kept = dict(CurveSummary.of(json.loads(json.dumps(summary.json()))).summaries())
    assert kept == {"loss": MetricSummary(2, None, 1.0, 3.0), "accuracy": MetricSummary(3, 0.5, 0.5, 0.5)}
    assert [kept[name].best(name) for name in kept] == [1.0, 0.5]
    assert kept["loss"].joined(MetricSummary(9, 2.0, 2.0, 7.0)) == MetricSummary(9, 2.0, 1.0, 7.0)
    assert kept["loss"].joined(MetricSummary(1, 2.0, 2.0, 2.0)) == MetricSummary(2, None, 1.0, 3.0)
    assert kept["loss"].joined(MetricSummary(1, 2.0, 2.0, 2.0, run=1)) == MetricSummary(1, 2.0, 1.0, 3.0, run=1)
    logged = MetricSummary(1, 8.0, 8.0, 8.0, MetricSource.LOGGED)
    assert (kept["loss"].joined(logged), logged.joined(kept["loss"])) == (logged, logged)
    assert kept["accuracy"].best("steps") is None


def test_a_point_with_a_step_replaces_what_was_guessed() -> None:
    guess = ProgressEvent("", 1500, metrics={"loss": 9.0}, is_position=False, is_guess=True)
    summary = digest(guess)
    assert dict(summary.summaries())["loss"].source is MetricSource.GUESSED
    kept = CurveSummary.of(json.loads(json.dumps(summary.json())))
    for event in (ProgressEvent("", 5, metrics={"loss": 1.0}), guess):
        kept.add(event)
    assert dict(kept.summaries()) == {"loss": MetricSummary(5, 1.0, 1.0, 1.0)}
