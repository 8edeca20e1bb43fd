"""Limits by caller: what is counted, who is refused, and that nothing stays counted."""

import pytest

from trainyard_protocol.errors import TooManyRequests
from trainyard_server.services.people import limits
from trainyard_server.services.people.limits import RateLimit, StreamLimit
from unit.server.services.people.test_guess_limits import Stopwatch


def passed(limit: RateLimit, name: str, requests: int) -> int:
    """Number of requests that are not refused."""
    return requests - sum(refusal(limit, name) is not None for _ in range(requests))


def refusal(limit: RateLimit, name: str) -> TooManyRequests | None:
    try:
        limit.check(name)
    except TooManyRequests as error:
        return error
    return None


def test_caller_has_ten_seconds_of_requests_at_once_and_then_its_rate() -> None:
    stopwatch = Stopwatch()
    limit = RateLimit(2, stopwatch)
    assert passed(limit, "alice", 100) == 20
    assert passed(limit, "bob", 20) == 20
    stopwatch.now += 3
    assert passed(limit, "alice", 100) == 6
    stopwatch.now += 1000
    assert passed(limit, "alice", 100) == 20
    assert passed(RateLimit(0, stopwatch), "alice", 10_000) == 10_000, "no limit"


@pytest.mark.parametrize(("rate", "wait_s"), [(100, 1), (0.05, 20)])
def test_refusal_says_when_the_next_request_passes(rate: float, wait_s: int) -> None:
    stopwatch = Stopwatch()
    limit = RateLimit(rate, stopwatch)
    passed(limit, "alice", 1000)
    error = refusal(limit, "alice")
    assert error is not None
    assert error.retry_after_s == wait_s
    assert f"alice sends more than {rate:g} requests a second" in error.message
    stopwatch.now += wait_s
    assert refusal(limit, "alice") is None


def test_only_the_callers_seen_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_CALLERS", 2)
    limit = RateLimit(0.1, Stopwatch())
    assert [passed(limit, name, 2) for name in ("alice", "bob", "alice", "carol", "bob")] == [1, 1, 0, 1, 1]
    assert len(limit._buckets) == 2


def test_streams_are_counted_by_caller_and_returned() -> None:
    limit = StreamLimit(1)
    with limit.slot("alice"), limit.slot("bob"):
        assert limit.open == 2
        with pytest.raises(TooManyRequests, match="alice has 1 live pages"), limit.slot("alice"):
            pass
    assert limit.open == 0
    with limit.slot("alice"):
        assert limit.open == 1
    with StreamLimit(0).slot("alice"):
        pass
