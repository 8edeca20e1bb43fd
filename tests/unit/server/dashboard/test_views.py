"""Open pages: who shares their updates, and what is sent of them."""

import asyncio
import threading
from contextlib import AsyncExitStack, aclosing

import pytest
from anyio.to_thread import current_default_thread_limiter
from jinja2 import UndefinedError
from starlette.requests import Request

from trainyard_server.dashboard.views import POLLING_THREADS, Dashboard, Parts, View, _events, _key
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.storage.events.notifier import Notifier

LONG_S = 1000.0


def request(name: str, csrf: str, role: Role = Role.SUBMITTER, host: str = "yard:8470") -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "path": "/live/",
            "query_string": b"state=RUNNING",
            "headers": [(b"host", host.encode())],
            "state": {"caller": Caller.everywhere(role, name), "csrf": csrf},
        }
    )


async def test_page_sends_all_parts_then_those_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    notifier = Notifier()
    pages = Dashboard(notifier, LONG_S)
    parts = {"counts": "0", "list": "a"}
    monkeypatch.setattr(pages, "parts", lambda _request, _view: dict(parts))
    async with (
        asyncio.timeout(60),
        aclosing(pages.changes(request("alice", ""), View("jobs.html", dict, ("changed",)))) as changes,
    ):
        assert await anext(changes) == {"counts": "0", "list": "a"}
        parts["counts"] = "1"
        notifier.publish("changed")
        assert await anext(changes) == {"counts": "1"}


async def test_browser_that_disconnects_in_the_middle_of_an_event_is_unsubscribed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notifier = Notifier()
    pages = Dashboard(notifier, LONG_S)
    monkeypatch.setattr(pages, "parts", lambda _request, _view: {"part": "0"})
    changes = pages.changes(request("alice", ""), View("jobs.html", dict))
    async with asyncio.timeout(60):
        async with aclosing(_events(changes, "")) as events:
            await anext(events)
            await anext(events)
            assert pages.broadcaster._channels
        assert not pages.broadcaster._channels


async def test_page_that_cannot_be_read_ends_the_stream(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pages = Dashboard(Notifier(), LONG_S)

    def parts(_request: Request, _view: View) -> Parts:
        raise OSError("the disk is away")

    monkeypatch.setattr(pages, "parts", parts)
    async with asyncio.timeout(60):
        changes = pages.changes(request("alice", ""), View("jobs.html", dict))
        assert await anext(changes, None) is None
    assert "A page cannot be kept up to date: the disk is away" in caplog.text


async def test_many_open_pages_read_in_a_few_threads_and_leave_those_of_other_requests_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages, opened = Dashboard(Notifier(), LONG_S), 200
    reading: list[Request] = []
    database_answers = threading.Event()

    def parts(request: Request, _view: View) -> Parts:
        reading.append(request)
        assert database_answers.wait(60)
        return {"part": "0"}

    monkeypatch.setattr(pages, "parts", parts)
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        stack.callback(database_answers.set)
        streams = [
            await stack.enter_async_context(
                aclosing(pages.changes(request("alice", "", host=f"yard-{n}"), View("jobs.html", dict)))
            )
            for n in range(opened)
        ]
        first = asyncio.gather(*(anext(stream) for stream in streams))
        while pages._polling.statistics().tasks_waiting < opened - POLLING_THREADS:
            await asyncio.sleep(0.01)
        assert len(reading) <= POLLING_THREADS
        assert current_default_thread_limiter().borrowed_tokens == 0
        database_answers.set()
        assert await first == [{"part": "0"}] * opened


def test_sessions_of_one_person_share_a_poll_and_nobody_else_does() -> None:
    first = _key(request("alice", "one"))
    assert _key(request("alice", "two")) == first
    assert _key(request("bob", "one")) != first
    assert _key(request("alice", "one", Role.ADMIN)) != first
    assert _key(request("alice", "one", host="other")) != first


async def test_what_sessions_share_has_no_secret_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = Dashboard(Notifier(), LONG_S)
    block = pages.rendering._environment.from_string("{% block live_x %}{{ caller.name }}{{ csrf }}{% endblock %}")
    monkeypatch.setattr(pages.rendering, "_live_blocks", lambda _: block.blocks)
    with pytest.raises(UndefinedError, match="csrf"):
        pages.parts(request("alice", "a-secret"), View("jobs.html", dict))
