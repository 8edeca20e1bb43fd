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


async def opened(broadcaster: Broadcaster[int], source: Source, count: int) -> list[AsyncGenerator[int | None, None]]:
    """Subscriptions, each of which has its first value."""
    streams = [subscribed(broadcaster, source) for _ in range(count)]
    for stream in streams:
        await anext(stream)
    return streams


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


async def test_slow_topics_are_gathered_and_others_do_not_wait_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainyard_server.storage.events.broadcaster._GATHERED_S", LONG_S)
    notifier, source = Notifier(), Source()
    shared = broadcaster(notifier)
    async with asyncio.timeout(60):
        stream = shared.subscribe("value", source, ("changed",), slow_topics=("slow", "slower"))
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        for topic in ("slow", "slower", "slow"):
            notifier.publish(topic)
            await asyncio.sleep(0.01)
        source.value = 1
        notifier.publish("changed")
        assert await waiting == 1
        await stream.aclose()
    assert source.polls == [(None, frozenset()), (0, {"slow", "slower", "changed"})]


async def test_topics_published_between_two_polls_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def paused(delay_s: float) -> None:
        pauses.append(delay_s)
        for _ in range(5):
            notifier.publish("changed")
        await sleep(0)

    notifier, source = Notifier(), Source()
    shared = broadcaster(notifier, 0.01)
    monkeypatch.setattr("trainyard_server.storage.events.broadcaster.asyncio.sleep", paused)
    async with asyncio.timeout(60):
        stream = subscribed(shared, source)
        while len(source.polls) < 3:
            await anext(stream)
        await stream.aclose()
    assert source.polls[:3] == [(None, frozenset()), (0, {"changed"}), (0, {"changed"})]
    assert set(pauses) == {0.25}


async def test_subscribers_are_woken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    notifier, source = Notifier(), Source()
    shared = broadcaster(notifier)
    async with asyncio.timeout(60):
        streams = [subscribed(shared, source) for _ in range(20)]
        for stream in streams:
            await anext(stream)
        waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.sleep(0)
        woken: list[int] = []
        sleep = asyncio.sleep

        async def paused(delay_s: float) -> None:
            await sleep(0)
            await sleep(0)
            woken.append(sum(one.done() for one in waiting))

        monkeypatch.setattr("trainyard_server.storage.events.broadcaster.asyncio.sleep", paused)
        source.value = 1
        notifier.publish("changed")
        await asyncio.gather(*waiting)
        for stream in streams:
            await stream.aclose()
    assert [count for count in woken if count][:2] == [7, 14]


async def test_value_is_polled_every_while_and_sent_when_it_differs() -> None:
    source = Source()
    shared = broadcaster(Notifier(), 0.01)
    async with asyncio.timeout(60):
        stream = shared.subscribe("value", source, (), 0.001)
        while len(source.polls) < 2:
            assert await anext(stream) in (0, None)
        assert await anext(stream) is None, "it has not changed"
        source.value = 1
        while (value := await anext(stream)) is None:
            pass
        assert value == 1
        await stream.aclose()


async def test_close_of_the_server_ends_every_stream_at_once() -> None:
    notifier = Notifier()
    shared = broadcaster(notifier)
    async with asyncio.timeout(60):
        streams = await opened(shared, Source(), 20)
        waiting = [asyncio.create_task(anext(stream, None)) for stream in streams]
        await asyncio.sleep(0.01)
        notifier.close()
        assert await asyncio.gather(*waiting) == [None] * 20
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


async def test_last_subscriber_ends_the_polling() -> None:
    notifier = Notifier()
    shared = broadcaster(notifier)
    async with asyncio.timeout(60):
        first, last = await opened(shared, Source(), 2)
        (channel,) = shared._channels.values()
        await first.aclose()
        assert shared._channels
        await last.aclose()
        assert not shared._channels
        await asyncio.gather(*channel.tasks, return_exceptions=True)
        assert [task.cancelled() for task in channel.tasks] == [True, True]
    assert not notifier._subscriptions


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


def test_event_loops_do_not_share_a_channel() -> None:
    shared, source = broadcaster(Notifier()), Source()

    async def first() -> int | None:
        return await anext(subscribed(shared, source))

    assert [asyncio.run(first()) for _ in range(2)] == [0, 0]
    assert len(source.polls) == 2
