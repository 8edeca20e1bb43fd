"""Agents that this one does not reach, on a clock that only the test moves."""

from trainyard_agent.host.clock import ManualClock
from trainyard_agent.peers.unreached import UnreachedPeers

ADDRESSES = {"a": "a:1", "b": "b:1"}


def test_peer_is_not_reached_after_two_questions_until_it_answers() -> None:
    clock = ManualClock()
    peers = UnreachedPeers(clock)
    peers.record("a", answered=True)
    peers.record("b", answered=False)
    assert list(peers.ids) == [], "one answer may get lost"
    assert list(peers.to_ask_again(ADDRESSES)) == []
    clock.advance(3)
    assert list(peers.to_ask_again(ADDRESSES)) == [("b", "b:1")], "soon"
    peers.record("b", answered=False)
    clock.advance(3)
    assert (list(peers.ids), list(peers.to_ask_again(ADDRESSES))) == (["b"], [])
    peers.record("b", answered=True)
    assert list(peers.ids) == []


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
