"""Several agents in one namespace, of which one writes."""

import asyncio
import logging

import pytest

from trainyard_agent.engines.kubernetes.api.client import KubeDown
from trainyard_agent.engines.kubernetes.coordination import LEASE_S, WRITE_S, CoordinationLease
from trainyard_agent.host.clock import ManualClock
from unit.agent.engines.kubernetes.fake_objects import FakeObjects


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def objects() -> FakeObjects:
    return FakeObjects()


def may_write(lease: CoordinationLease) -> bool:
    try:
        lease.check()
    except KubeDown:
        return False
    return True


def test_second_agent_takes_over_from_one_that_renews_no_more(objects: FakeObjects, clock: ManualClock) -> None:
    first, second = (CoordinationLease(objects, name, clock) for name in ("first", "second"))
    assert first.try_acquire() == ""
    assert second.try_acquire() == "first"
    for _ in range(5):
        clock.advance(LEASE_S - 1)
        assert may_write(first)  # which renews it
        assert second.try_acquire() == "first"
    clock.advance(LEASE_S)
    assert second.try_acquire() == ""
    assert may_write(second)
    assert not may_write(first)
    second.release()
    assert not may_write(first)  # never again, whoever has it
    assert not may_write(second)


def test_agent_whose_api_server_is_away_stops_writing_and_goes_on_afterwards(
    objects: FakeObjects, clock: ManualClock
) -> None:
    lease = CoordinationLease(objects, "first", clock)
    assert lease.try_acquire() == ""
    objects.down = True
    clock.advance(WRITE_S - 1)
    assert may_write(lease)
    clock.advance(1)
    assert not may_write(lease)
    objects.down = False
    clock.advance(1000)
    assert may_write(lease)


def test_of_two_that_see_an_expired_lease_one_gets_it(objects: FakeObjects, clock: ManualClock) -> None:
    CoordinationLease(objects, "gone", clock).try_acquire()
    slow, quick = (CoordinationLease(objects, name, clock) for name in ("slow", "quick"))
    assert (slow.try_acquire(), quick.try_acquire()) == ("gone", "gone")
    clock.advance(LEASE_S)

    def overtake() -> None:
        objects.before_patch = lambda: None
        assert quick.try_acquire() == ""

    objects.before_patch = overtake
    assert slow.try_acquire() == "quick"
    assert (may_write(slow), may_write(quick)) == (False, True)


async def test_agent_says_for_whom_it_waits_and_ends_when_it_is_replaced(
    objects: FakeObjects, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = (CoordinationLease(objects, name, clock) for name in ("first", "second"))
    await first.acquire()
    with caplog.at_level(logging.INFO):
        waiting = asyncio.create_task(second.acquire())
        while "the agent of the namespace ns is first" not in caplog.text:
            await asyncio.sleep(0.001)
        first.release()
        while not waiting.done():
            clock.advance(1)
            await asyncio.sleep(0.001)
    assert "took over from first" in caplog.text

    replaced = asyncio.create_task(second.lost())
    objects.found["leases", "trainyard-agent"]["spec"] |= {"holderIdentity": "third", "renewTime": "now"}
    while not replaced.done():
        clock.advance(1)
        await asyncio.sleep(0.001)
    assert replaced.result() == "third"
