"""Broadcasts: one poll for all subscribers, at a measured pace, until the last of them leaves."""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator

import pytest

from trainyard_server.storage.events.broadcaster import Broadcaster
from trainyard_server.storage.events.notifier import Notifier

LONG_S = 1000.0


class Source:
    """A value that is read; `polls` are the values it was read after, and what was published since."""

    def __init__(self) -> None:
        self.value = 0
        self.polls: list[tuple[int | None, frozenset[str]]] = []

    async def __call__(self, last: int | None, published: frozenset[str]) -> int:
        self.polls.append((last, published))
        return self.value


def broadcaster(notifier: Notifier, ping_s: float = LONG_S) -> Broadcaster[int]:
    return Broadcaster(notifier, ping_s, "The value cannot be read")


def subscribed(broadcaster: Broadcaster[int], source: Source) -> AsyncGenerator[int | None, None]:
    return broadcaster.subscribe("value", source, ("changed",))


async def test_subscribers_share_each_poll_and_a_late_one_gets_the_newest_value() -> None:
    notifier, source = Notifier(), Source()
    shared = broadcaster(notifier)
    async with asyncio.timeout(60):
        streams = [subscribed(shared, source) for _ in range(50)]
        assert [await anext(stream) for stream in streams] == [0] * 50
        *others, late = streams
        for source.value in (1, 2):
            waiting = [asyncio.ensure_future(anext(stream)) for stream in others]
            notifier.publish("changed")
            assert await asyncio.gather(*waiting) == [source.value] * 49
        assert await anext(late) == 2
        new = subscribed(shared, source)
        assert await anext(new) == 2
        for stream in (*streams, new):
            await stream.aclose()
    assert source.polls == [(None, frozenset()), (0, {"changed"}), (1, {"changed"})]
    assert not shared._channels


async def test_close_of_the_server_does_not_wait_for_a_poll_that_hangs() -> None:
    notifier, released, begun = Notifier(), threading.Event(), threading.Event()
    shared = broadcaster(notifier)

    def read() -> int:
        begun.set()
        released.wait(60)
        return 0

    async def poll(_last: int | None, _published: frozenset[str]) -> int:
        return await asyncio.to_thread(read)

    waiting = asyncio.create_task(anext(shared.subscribe("value", poll, ()), None))
    try:
        await asyncio.to_thread(begun.wait, 30)
        notifier.close()
        async with asyncio.timeout(60):
            assert await waiting is None
    finally:
        released.set()
    assert not shared._channels


async def test_poll_that_fails_ends_the_streams_is_logged_once_and_the_next_subscriber_starts_anew(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shared, source = broadcaster(Notifier()), Source()

    async def poll(_last: int | None, _published: frozenset[str]) -> int:
        raise OSError(28, "No space left on device")

    async with asyncio.timeout(60):
        failed = [shared.subscribe("value", poll, ()) for _ in range(3)]
        with caplog.at_level(logging.ERROR):
            assert await asyncio.gather(*(anext(stream, None) for stream in failed)) == [None] * 3
        (record,) = caplog.records
        assert record.getMessage().startswith("The value cannot be read: the disk of the data directory is full")
        again = subscribed(shared, source)
        assert await anext(again) == 0
        await again.aclose()
    assert not shared._channels
