"""The trials that a study's page shows."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from trainyard_protocol.states import JobState
from trainyard_server.domain.tuning.study import TrialSnapshot
from trainyard_server.domain.tuning.study_charts import best_quarter, chosen_numbers, records, sample

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def trials(*values: float | None) -> list[TrialSnapshot]:
    return [
        TrialSnapshot(
            number, number, f"s.{number}", JobState.SUCCEEDED, {}, NOW, final=None if value is None else (1, value)
        )
        for number, value in enumerate(values, 1)
    ]


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
    *most, last = trials(0.1, 0.2, 0.3, 0.9)
    assert best_quarter([*most, replace(last, job_state=JobState.RUNNING)], maximize=True) == []


def test_numbers_are_read_from_ranges() -> None:
    assert chosen_numbers("2-4, 6,6", range(1, 6)) == [2, 3, 4]
    for text in ("", "x", "1-", "9", "3,-1", "1-2-3", "1,,2", "1," * 9999 + "1"):
        with pytest.raises(ValueError):
            chosen_numbers(text, range(1, 6))
