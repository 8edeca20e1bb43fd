"""Pages that stay true: whoever looks is told, and whoever leaves is forgotten."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from jinja2 import UndefinedError
from starlette.requests import Request

from trainyard_server.dashboard.live import Live, Parts
from trainyard_server.dashboard.views import Dashboard, View, _events, _key
from trainyard_server.domain.permissions import Caller, Role
from trainyard_server.storage.events.notifier import Notifier

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


async def test_close_of_the_server_waits_for_no_look_that_hangs() -> None:
    notifier, held, begun = Notifier(), threading.Event(), threading.Event()
    live = Live(notifier, LONG_S)

    def look() -> Parts:
        begun.set()
        held.wait(60)
        return {}

    waiting = asyncio.create_task(anext(live.stream(("page",), look, (), LONG_S), None))
    try:
        await asyncio.to_thread(begun.wait, 30)
        notifier.close()
        async with asyncio.timeout(20):
            assert await waiting is None
    finally:
        held.set()
    assert not live._pages


async def test_viewer_who_leaves_in_the_middle_of_an_event_is_forgotten_at_once() -> None:
    notifier = Notifier()
    live, page = Live(notifier, LONG_S), Page()
    async with asyncio.timeout(60):
        async with aclosing(_events(opened(live, page), "")) as events:
            await anext(events)
            await anext(events)
            tasks = live._pages["page",].tasks
        assert not live._pages
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [True, True]
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


def request(name: str, csrf: str, role: Role = Role.SUBMITTER, host: str = "yard:8470") -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/live/",
            "query_string": b"state=RUNNING",
            "headers": [(b"host", host.encode())],
            "state": {"caller": Caller(role, name), "csrf": csrf},
        }
    )


def test_sessions_of_one_person_share_a_look_and_nobody_else_does() -> None:
    first = _key(request("alice", "one"))
    assert _key(request("alice", "two")) == first
    assert _key(request("bob", "one")) != first
    assert _key(request("alice", "one", Role.ADMIN)) != first
    assert _key(request("alice", "one", host="other")) != first


async def test_what_sessions_share_has_no_secret_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Dashboard(Notifier(), LONG_S)
    block = pages.rendering._environment.from_string(
        "{% block live_x %}{{ caller.name }}{{ csrf }}{% endblock %}"
    )
    monkeypatch.setattr(pages.rendering, "_live_blocks", lambda _: block.blocks)
    with pytest.raises(UndefinedError, match="csrf"):
        pages.parts(request("alice", "a-secret"), View("jobs.html", dict))
