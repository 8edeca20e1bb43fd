"""Rules of early stopping: which curves are stopped, and why."""

import math
from datetime import UTC, datetime
from typing import Any

from trainyard_protocol.job.hyperparameters import EarlyStopping
from trainyard_protocol.states import JobState
from trainyard_server.domain.tuning.early_stopping import TrialCurve, reason_to_stop
from trainyard_server.domain.tuning.measurements import MAX_MEASUREMENTS, Measurement, merged
from trainyard_server.domain.tuning.study import TrialPhase, TrialSnapshot

MEDIAN = EarlyStopping()
NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def asha(**fields: Any) -> EarlyStopping:
    return EarlyStopping.model_validate({"rule": "ASHA", **fields})


def curve(*values: float, first: int = 1) -> TrialCurve:
    """One value at each step; NaN as the server has it."""
    points = list(enumerate(values, first))
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    return TrialCurve(finite, [at for at, value in points if not math.isfinite(value)])


def at(*points: Measurement) -> TrialCurve:
    return TrialCurve(points)


def test_median_rule() -> None:
    completed = [at((1, 0.5), (2, 0.7)), at((1, 0.6), (2, 0.6)), at((1, 0.4), (2, 0.6))]  # averages .6, .6, .5
    rows: list[tuple[TrialCurve, list[TrialCurve], bool, str]] = [
        (at((1, 0.1), (2, 0.59)), completed, True, "the median rule: best 0.59 at step 2, 0.6 needed"),
        (at((1, 0.6), (2, 0.1)), completed, True, ""),  # its best value counts
        (at((2, 0.61)), completed, False, "the median rule: best 0.61 at step 2, 0.6 needed"),
        (at((2, 0.1)), completed[:2], True, ""),
        (at((0, 0.1)), completed, True, ""),  # nothing to compare with
        (at(), completed, True, ""),
        (at((1, 0.0)), [at((1, 1.7e308), (1, 1.7e308))] * 3, True, "the median rule: best 0 at step 1, inf needed"),
    ]
    for trial, others, maximize, reason in rows:
        assert reason_to_stop(MEDIAN, trial, others, others, maximize=maximize) == reason


def test_asha_lets_one_of_its_factor_go_on_at_each_rung_that_a_trial_has_reached() -> None:
    before = [curve(0.5), curve(0.2), curve(0.4), curve(0.9), curve(0.6)]  # of them and a sixth the best two go on
    rule = asha(minSteps=1)
    rows: dict[str, tuple[TrialCurve, list[TrialCurve], bool, str]] = {
        "third of six": (curve(0.55), before, True, "ASHA: 0.55 at step 1 (rung 0), 0.6 needed"),
        "second of six": (curve(0.7), before, True, ""),
        "minimized": (curve(0.45), before, False, "ASHA: 0.45 at step 1 (rung 0), 0.4 needed"),
        "equal to the last that goes on": (curve(0.4), before, False, ""),
        "first": (curve(0.1), [], True, ""),
        "second, and better": (curve(0.6), before[:1], True, ""),
        "second, and worse": (curve(0.4), before[:1], True, "ASHA: 0.4 at step 1 (rung 0), 0.5 needed"),
        "between rungs": (curve(0.7, 0.0), before, True, ""),
        "at the next rung": (
            curve(0.7, 0.7, 0.3),
            [curve(0.1, 0.2, 0.8), *before],
            True,
            "ASHA: 0.3 at step 3 (rung 1), 0.8 needed",
        ),
        # What many reports at once show is what one after the other did.
        "past the rung": (curve(0.1, 0.9, 0.9), before, True, "ASHA: 0.1 at step 1 (rung 0), 0.6 needed"),
        "NaN": (curve(math.nan), [], True, "ASHA: not finite at step 1 (rung 0)"),
        "NaN of others": (curve(0.1), [curve(math.nan), curve(0.0)], True, ""),
        "NaN after the rung": (curve(0.7, math.nan), before, True, ""),
        "NaN and then a value": (curve(math.nan, 0.5), [], False, "ASHA: not finite at step 1 (rung 0)"),
        "nothing reported": (curve(), before, True, ""),
        "before the first rung": (curve(0.0, first=0), before, True, ""),
    }
    got = {name: reason_to_stop(rule, one, others, [], maximize=up) for name, (one, others, up, _) in rows.items()}
    assert got == {name: reason for name, (_, _, _, reason) in rows.items()}


def test_asha_takes_the_last_report_at_or_before_a_rung() -> None:
    rule = asha(minSteps=10, reductionFactor=2)  # rungs 10, 20, 40
    before = [at((8, 0.5), (16, 0.9), (24, 0.1))]
    stopped = "ASHA: 0.4 at step 10 (rung 0), 0.5 needed"
    rows = {
        "not there yet": (at((9, 0.4)), ""),
        "there by a later report": (at((9, 0.4), (11, 0.8)), stopped),
        "no report before the first rung": (at((15, 0.95), (24, 0.0)), ""),
        "at the second rung": (at((10, 0.6), (19, 0.8), (21, 1.0)), "ASHA: 0.8 at step 20 (rung 1), 0.9 needed"),
    }
    got = {name: reason_to_stop(rule, one, before, [], maximize=True) for name, (one, _) in rows.items()}
    assert got == {name: reason for name, (_, reason) in rows.items()}


def test_early_steps_of_a_long_trial_stay_for_those_that_come_later() -> None:
    stored: tuple[Measurement, ...] = ()
    for start in range(1, 10_001, 50):  # as an agent reports, now and then
        stored = merged(stored, ((number, float(number)) for number in range(start, start + 50)))
    assert (len(stored), stored[-1][0]) == (MAX_MEASUREMENTS, 10_000)
    steps = [number for number, _ in stored]
    for rung in (1, 3, 9, 27, 81, 243, 729, 2187, 6561):
        nearest = max(number for number in steps if number <= rung)
        assert nearest >= 0.95 * rung, (rung, nearest)


def trial(number: int, state: JobState, *values: float) -> TrialSnapshot:
    points = tuple(enumerate(values, 1))
    return TrialSnapshot(
        number,
        number,
        f"s.{number}",
        state,
        {"x": "1"},
        NOW,
        started_at=NOW,
        logged=TrialPhase.ENDED,
        final=points[-1],
        measurements=points,
    )
