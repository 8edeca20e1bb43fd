"""Limits of wrong credentials and of requests: what is counted as one, and that nobody is shut out."""

import asyncio

import pytest

from trainyard_protocol.errors import TooManyRequests, Unauthenticated
from trainyard_server.services.people import guess_limits, limits
from trainyard_server.services.people.guess_limits import PER_MINUTE, GuessLimits, TooManyGuesses
from trainyard_server.services.people.limits import RateLimit

WRONG = Unauthenticated("Wrong.")


class Stopwatch:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def refused(limits: GuessLimits, who: str, guesses: int) -> int:
    """Number of wrong credentials that are beyond the limit."""
    return sum(isinstance(limits.wrong(who, WRONG), TooManyGuesses) for _ in range(guesses))


def test_so_many_at_once_are_just_wrong_and_then_so_many_a_minute() -> None:
    stopwatch = Stopwatch()
    limits = GuessLimits(stopwatch)
    assert refused(limits, "192.0.2.1", PER_MINUTE + 5) == 5
    assert refused(limits, "192.0.2.2", PER_MINUTE) == 0
    error = limits.wrong("192.0.2.1", WRONG)
    assert isinstance(error, TooManyGuesses)
    assert error.message.startswith("Wrong. Too many wrong ones came from your address: try the next in 6 s.")
    stopwatch.now += error.retry_after_s
    assert limits.wrong("192.0.2.1", WRONG) is WRONG
    stopwatch.now += 60
    assert refused(limits, "192.0.2.1", PER_MINUTE + 5) == 5


def test_addresses_of_one_ipv6_network_count_as_one() -> None:
    limits = GuessLimits(Stopwatch())
    assert refused(limits, "2001:db8::1", PER_MINUTE) == 0
    assert refused(limits, "2001:db8::ffff:2", 1) == 1
    assert refused(limits, "2001:db8:0:1::1", 1) == 0


def test_number_and_length_of_what_is_remembered_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guess_limits, "_REMEMBERED", 3)
    limits = GuessLimits(Stopwatch())
    for number in range(100):
        limits.wrong(f"{number}" * 1000, WRONG)
    assert len(limits._buckets) == 3
    assert max(map(len, limits._buckets._buckets)) == 100
    for _ in range(10):
        asyncio.run(check_once(limits, "nobody"))
    assert len(limits._buckets) == 3, "a check alone is not remembered"


async def check_once(limits: GuessLimits, who: str) -> None:
    async with limits.checking(who):
        pass


async def test_credentials_of_guessers_are_checked_one_by_one_and_those_of_others_at_once() -> None:
    limits = GuessLimits(Stopwatch())
    refused(limits, "guesser", PER_MINUTE)
    refused(limits, "second guesser", PER_MINUTE)
    at_once = {"guess": 0, "other": 0}
    most = dict(at_once)

    async def check(who: str, kind: str) -> None:
        async with limits.checking(who):
            at_once[kind] += 1
            most[kind] = max(most[kind], at_once[kind])
            await asyncio.sleep(0)
            at_once[kind] -= 1

    guesses = [check(who, "guess") for who in ("guesser", "second guesser") * 5]
    await asyncio.gather(*guesses, *(check("other", "other") for _ in range(10)))
    assert most == {"guess": 1, "other": 10}


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
