"""Silence is measured by what this process sees change, not by anybody's time of day."""

from datetime import UTC, datetime, timedelta

from trainyard_server.storage.agent_liveness import AgentLiveness
from trainyard_server.storage.db.base.models import AgentRow

START = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Time:
    """A time of day and a stopwatch that the test moves, each by itself."""

    def __init__(self) -> None:
        self.day = START
        self.passed = 0.0

    def liveness(self) -> AgentLiveness:
        return AgentLiveness(lambda: self.day, lambda: self.passed, silent_after_s=30)


def agent(heartbeats: int, last_seen: datetime = START) -> AgentRow:
    return AgentRow(agent_id="a", heartbeats=heartbeats, last_seen=last_seen)


def test_agent_is_silent_for_as_long_as_its_number_stands() -> None:
    time = Time()
    liveness = time.liveness()
    assert liveness.silent_s(agent(1)) == 0
    time.passed = 40
    assert (liveness.silent_s(agent(1)), liveness.is_alive(agent(1))) == (40, False)
    assert (liveness.silent_s(agent(2)), liveness.is_alive(agent(2))) == (0, True)


def test_clock_that_jumps_makes_nobody_silent_nor_does_the_time_before() -> None:
    time = Time()
    liveness = time.liveness()
    assert liveness.silent_s(agent(1, last_seen=START - timedelta(days=1))) == 0
    liveness.silent_s(agent(2))
    for jump in (timedelta(days=1), -timedelta(days=2)):
        time.day += jump
        assert (liveness.silent_s(agent(2)), liveness.is_alive(agent(2))) == (0, True)


def test_agent_that_was_gone_when_the_process_began_is_given_nothing_until_it_is_heard() -> None:
    time = Time()
    liveness = time.liveness()
    assert not liveness.is_alive(agent(7, last_seen=START - timedelta(seconds=31)))
    assert liveness.is_alive(agent(8, last_seen=START))
