"""Silence, measured by what this process sees change and not by anybody's time of day; agents that ask each other."""

from collections import Counter
from datetime import UTC, datetime, timedelta

from trainyard_protocol.wire.peers import MOST_MEMBERS, SHORT_LEASE_S
from trainyard_server.storage.agent_liveness import AgentLiveness
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.membership import Membership

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


def test_each_of_many_agents_asks_and_is_asked_by_as_many_of_its_group() -> None:
    now = [0.0]
    membership = Membership(lambda: now[0])
    groups = {"large": [f"l{number:02}" for number in range(50)], "small": ["s1", "s2", "s3"]}
    for group, agents in groups.items():
        for agent in agents:
            membership.called(agent, f"{agent}:1", "", group)
    membership.called("hidden", "", "", "large")
    assert membership.offer("l00", (), ()).addresses == {}
    assert membership.neighbours("s2") == {"s1": "s1:1", "s3": "s3:1"}
    asked = {agent: membership.neighbours(agent) for agent in groups["large"]}
    assert {len(others) for others in asked.values()} == {MOST_MEMBERS - 1}
    assert set(Counter(other for others in asked.values() for other in others).values()) == {MOST_MEMBERS - 1}
    assert not [agent for agent, others in asked.items() if agent in others]
    assert membership.neighbours("hidden") == membership.neighbours("unheard of") == {}
    assert not membership.may_vote("s1"), "so that answers are held for long"

    now[0] = SHORT_LEASE_S + 1
    for agent in groups["small"][:2]:
        membership.called(agent, f"{agent}:1", "", "small")
    assert membership.neighbours("s2") == {"s1": "s1:1"}, "the others have not called lately"
    assert membership.may_vote("s1")
    membership.decides = False
    assert (membership.neighbours("s2"), membership.may_vote("s1")) == ({}, False)
