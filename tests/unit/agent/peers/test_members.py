"""Agents that ask each other over real sockets, and those that are not reached."""

from collections.abc import AsyncIterator

import pytest

from trainyard_agent.host.clock import ManualClock
from trainyard_agent.lease.lease import Lease
from trainyard_agent.lease.majority import Majority
from trainyard_agent.peers.members import PeerMembers
from trainyard_agent.peers.reach import Reach
from trainyard_agent.peers.unreached import UnreachedPeers
from trainyard_protocol.wire.peers import SHORT_LEASE_S, WITHOUT_ANSWER_S, Peers
from trainyard_protocol.wire.sync import SyncResponse

NAMES = ("a", "b")


class Agents:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.leases = {name: Lease(self.clock) for name in NAMES}
        self.members = {
            name: PeerMembers(Majority(name, lease, self.clock), Reach("127.0.0.1"))
            for name, lease in self.leases.items()
        }

    def answer(self, name: str, key: str = "key") -> None:
        """The server answers this one."""
        others = {other: members.address for other, members in self.members.items() if other != name}
        peers = Peers(key=key, addresses=others)
        answer = SyncResponse(version="", lease_s=SHORT_LEASE_S, runs=(), members=NAMES, peers=peers)
        self.members[name].majority.answered(self.clock.monotonic(), answer)
        self.leases[name].renew(self.clock.monotonic(), SHORT_LEASE_S)

    def left_s(self, name: str) -> float:
        return self.leases[name].stop_in(0)


@pytest.fixture
async def agents() -> AsyncIterator[Agents]:
    agents = Agents()
    for members in agents.members.values():
        await members.open()
    yield agents
    for members in agents.members.values():
        members.close()


async def test_lease_goes_on_while_the_other_has_no_answer_either(agents: Agents) -> None:
    for name in NAMES:
        agents.answer(name)
    left = agents.left_s("a")
    await agents.members["a"].round()
    assert agents.members["a"].majority.reached == ("b",)
    for _ in range(20):
        agents.clock.advance(WITHOUT_ANSWER_S)
        await agents.members["a"].round()
        assert agents.left_s("a") == left
    agents.answer("b")
    agents.clock.advance(10)
    await agents.members["a"].round()
    assert agents.left_s("a") == left - 10


async def test_agent_that_does_not_answer_is_not_reached_until_it_does(agents: Agents) -> None:
    first, second = (agents.members[name] for name in NAMES)
    for name in NAMES:
        agents.answer(name)
    second.close()
    await first.round()
    agents.clock.advance(3)
    await first.round()
    assert list(first.unreached.ids) == ["b"]
    await second.open()
    agents.answer("a")
    agents.clock.advance(WITHOUT_ANSWER_S)
    await first.round()
    assert list(first.unreached.ids) == []


async def test_answer_with_another_key_or_of_another_agent_counts_for_nothing(agents: Agents) -> None:
    agents.answer("a")
    agents.answer("b", key="of another server")
    left = agents.left_s("a")
    agents.clock.advance(WITHOUT_ANSWER_S)
    await agents.members["a"].round()
    assert (agents.members["a"].majority.reached, agents.left_s("a")) == ((), left - WITHOUT_ANSWER_S)

    agents.members["b"].majority = Majority("c", agents.leases["b"], agents.clock)
    agents.answer("b")
    agents.clock.advance(WITHOUT_ANSWER_S)
    await agents.members["a"].round()
    assert agents.members["a"].majority.reached == ()


def test_gang_that_did_not_meet_counts_for_longer_each_time_whatever_is_answered() -> None:
    clock = ManualClock()
    peers = UnreachedPeers(clock)
    for lasts_s in (60, 120, 240, 480, 960, 1800, 1800):
        peers.record_apart({"b"})
        clock.advance(lasts_s - 1)
        peers.record("b", answered=True)
        peers.keep_to({"a"})
        assert list(peers.ids) == ["b"]
        clock.advance(2)
        assert list(peers.ids) == []
    clock.advance(1800)
    peers.record_apart({"b"})
    clock.advance(61)
    assert list(peers.ids) == [], "as the first time, after a long one without a failure"
