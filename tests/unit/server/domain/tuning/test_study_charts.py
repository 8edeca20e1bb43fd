"""The trials that a study's page shows."""

from datetime import UTC, datetime

from trainyard_protocol.states import JobState
from trainyard_server.domain.tuning.study import TrialSnapshot
from trainyard_server.domain.tuning.study_charts import sample

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
