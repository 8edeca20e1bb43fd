"""The trials that a study's page shows."""

import pytest

from trainyard_server.domain.tuning.study_charts import (
    TrialValue,
    best_quarter,
    chosen_numbers,
    records,
    sample,
)


def trials(*values: float | None) -> list[TrialValue]:
    return [TrialValue(number, value, True) for number, value in enumerate(values, 1)]


def test_of_many_trials_the_best_and_the_newest_are_shown() -> None:
    some = trials(0.9, 0.1, 0.8, None, 0.2, 0.3)
    assert sample(some, maximize=True, most=4) == {1, 3, 5, 6}
    assert sample(some, maximize=False, most=4) == {2, 5, 6, 4}
    assert sample(some, maximize=True, most=6) == {1, 2, 3, 4, 5, 6}


def test_records_are_the_trials_better_than_all_before() -> None:
    some = trials(None, 0.5, 0.4, 0.5, 0.7, 0.1)
    assert records(some, maximize=True) == [(2, 0.5), (5, 0.7)]
    assert records(some, maximize=False) == [(2, 0.5), (3, 0.4), (6, 0.1)]


def test_best_quarter_takes_four_trials_that_have_ended() -> None:
    some = trials(0.1, 0.9, 0.3, 0.2, None, 0.4)
    assert best_quarter(some, maximize=True) == [2]
    assert best_quarter(some, maximize=False) == [1]
    assert best_quarter([*trials(0.1, 0.2, 0.3), TrialValue(4, 0.9, False)], maximize=True) == []


def test_numbers_are_read_from_ranges() -> None:
    assert chosen_numbers("2-4, 6,6", range(1, 6)) == [2, 3, 4]
    for text in ("", "x", "1-", "9", "3,-1", "1-2-3", "1,,2", "1," * 9999 + "1"):
        with pytest.raises(ValueError):
            chosen_numbers(text, range(1, 6))
