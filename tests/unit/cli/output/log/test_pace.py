from datetime import timedelta

import pytest

from trainyard_cli.output.log.pace import Pace, left_text, rate_text, silent_text
from unit.cli.terminal import NOON


def pace(*reports: tuple[float, int]) -> Pace:
    made = Pace()
    for at, step in reports:
        made.add(step, NOON + timedelta(seconds=at))
    return made


@pytest.mark.parametrize(
    ("reports", "speed"),
    [
        ([], None),
        ([(0, 0)], None),
        ([(0, 0), (10, 10)], 1),
        ([(0, 0), (60, 10), (61, 20)], 10),  # the first step is compiled
        ([(0, 0), (60, 10), (61, 20), (62, 20)], 10),  # a heartbeat
        ([*((n, n) for n in range(100)), (200, 101), *((200 + n, 101 + 2 * n) for n in range(1, 20))], 2),  # a pause
        ([(0, 50), (10, 60), (20, 0), (30, 40)], 4),  # a new run
        ([(0, 1), (1, 2), (1, 3), (1, 4)], 3),  # several in one instant
    ],
)
def test_speed_is_that_of_the_last_reports(reports: list[tuple[float, int]], speed: float | None) -> None:
    assert pace(*reports).steps_per_s == speed


def test_silence_is_longer_than_three_of_the_longest_intervals_and_20_seconds() -> None:
    for interval, silent_after in ((1, 20), (30, 90)):
        made = pace(*((n * interval, n) for n in range(4)))
        for since in (silent_after, silent_after + 1):
            expected = since if since > silent_after else None
            assert made.silent_s(NOON + timedelta(seconds=3 * interval + since)) == expected


def test_texts_are_short() -> None:
    assert [left_text(s) for s in (6, 66, 3726, 100_000)] == ["0:06 left", "1:06 left", "1:02:06 left", "1 d 3 h left"]
    assert [silent_text(s) for s in (40, 720, 20_000)] == ["no step for 40 s", "no step for 12 min", "no step for 5 h"]
    assert [rate_text(r) for r in (8.25, 0.5, 0.1, 12_345)] == [
        "8.2 steps/s",
        "0.5 steps/s",
        "10.0 s/step",
        "1.23e+04 steps/s",
    ]
