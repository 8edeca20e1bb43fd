"""Curves in arrays: any order, thinned, joined over runs."""

import math
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.domain.metrics.series import LEAST, Curve, Points, joined

VALUES = st.one_of(st.floats(), st.integers(-3, 3).map(float))
POINTS = st.lists(st.tuples(st.integers(0, 300), VALUES, st.integers(0, 10).map(float)), max_size=300)

Triple = tuple[int, float, float]


def points(given: Iterable[Triple]) -> Points:
    curve = Curve()
    for one in given:
        curve.add(*one)
    return curve.points()


def naive(given: Iterable[Triple]) -> list[Triple]:
    return sorted({step: (step, value, time) for step, value, time in given}.values())


def same(result: Iterable[Triple], expected: Iterable[Triple]) -> bool:
    """NaN is NaN here."""
    return list(map(repr, result)) == list(map(repr, expected))


@given(POINTS, st.integers(LEAST, 100))
def test_thinned_keeps_the_ends_the_peaks_and_what_is_no_number(given: list[Triple], limit: int) -> None:
    all_of_it = points(given)
    few = all_of_it.thinned(limit)
    assert len(few) <= limit
    thinned = list(map(repr, few))
    assert [one for one in map(repr, all_of_it) if one in set(thinned)] == thinned
    if len(all_of_it) <= limit:
        assert same(few, all_of_it)
        return
    assert (few.steps[0], few.steps[-1]) == (all_of_it.steps[0], all_of_it.steps[-1])
    finite = [value for value in all_of_it.values if math.isfinite(value)]
    if finite:
        left = [value for value in few.values if math.isfinite(value)]
        assert (min(left), max(left)) == (min(finite), max(finite))
    assert all(map(math.isfinite, few.values)) == all(map(math.isfinite, all_of_it.values))


@given(st.lists(POINTS, max_size=4))
def test_a_step_that_was_trained_again_is_the_later_runs(runs: list[list[Triple]]) -> None:
    expected: dict[int, list[Triple]] = {}
    for number, one in enumerate(runs):
        later = [[step for step, _, _ in again] for again in runs[number + 1 :] if again]
        left = [p for p in naive(one) if not any(min(steps) <= p[0] <= max(steps) for steps in later)]
        if left:
            expected[number] = left
    result = dict(joined([(number, points(one)) for number, one in enumerate(runs)]))
    assert result.keys() == expected.keys()
    assert all(same(result[number], expected[number]) for number in expected)
