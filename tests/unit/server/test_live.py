"""Pages that stay true: whoever looks is told, and whoever leaves is forgotten."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from trainyard_server.dashboard.live import Live, Parts
from trainyard_server.dashboard.pages import _events
from trainyard_server.notify import Notifier

LONG_S = 1000.0


class Page:
    def __init__(self) -> None:
        self.html = "0"

    def __call__(self) -> Parts:
        return {"part": self.html}


def opened(live: Live, page: Page) -> AsyncGenerator[Parts | None, None]:
    return live.stream(("page",), page, ("news",), LONG_S)


async def test_all_who_look_are_told_also_those_who_come_back_to_wait_behind_others() -> None:
    notifier = Notifier()
    live, page = Live(notifier, LONG_S), Page()
    async with asyncio.timeout(60):
        streams = [opened(live, page) for _ in range(50)]
        for stream in streams:
            assert await anext(stream) == {"part": "0"}
        shared = live._pages["page",]
        late = streams[0]
        # The one that is late finds the lock taken by those who wake up, with the next news before it.
        await shared.changed.acquire()
        waiting = asyncio.create_task(anext(late))
        await asyncio.sleep(0)
        shared.parts, shared.version = {"part": "1"}, shared.version + 1
        shared.changed.notify_all()
        shared.changed.release()
        assert await waiting == {"part": "1"}
        for stream in streams:
            await stream.aclose()
    assert not live._pages


async def test_close_of_the_server_ends_every_stream_at_once() -> None:
    notifier = Notifier()
    live, page = Live(notifier, LONG_S), Page()
    async with asyncio.timeout(60):
        streams = [opened(live, page) for _ in range(20)]
        for stream in streams:
            await anext(stream)
        waiting = [asyncio.create_task(anext(stream, None)) for stream in streams]
        await asyncio.sleep(0.01)
        notifier.close()
        assert await asyncio.gather(*waiting) == [None] * 20
    assert not live._pages


async def test_viewer_who_leaves_in_the_middle_of_an_event_is_forgotten_at_once() -> None:
    notifier = Notifier()
    live, page = Live(notifier, LONG_S), Page()
    async with asyncio.timeout(60):
        async with aclosing(_events(opened(live, page))) as events:
            await anext(events)
            await anext(events)
            task = live._pages["page",].task
            assert task is not None
        assert not live._pages
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
    assert not notifier._subscriptions


async def test_look_that_fails_ends_the_stream_and_the_next_one_tries_anew() -> None:
    live, page = Live(Notifier(), LONG_S), Page()
    failing = [True]

    def look() -> Parts:
        if failing.pop():
            raise OSError("the disk is away")
        return page()

    async with asyncio.timeout(60):
        assert await anext(live.stream(("page",), look, (), LONG_S), None) is None
        failing[:] = [False]
        again = live.stream(("page",), look, (), LONG_S)
        assert await anext(again) == {"part": "0"}
        await again.aclose()
    assert not live._pages
