"""Agents that are asked whether they are reached, where there are too many for short leases."""

from collections import Counter

from trainyard_protocol.wire.peers import MOST_MEMBERS, SHORT_LEASE_S
from trainyard_server.storage.membership import Membership


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
