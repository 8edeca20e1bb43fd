"""Limits as middleware: who has them, and that a stream's slot is returned however the stream ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from trainyard_server.api.middleware.limits import LimitCheck
from trainyard_server.app import ACCESS
from trainyard_server.domain.access.permissions import Caller, Role
from trainyard_server.services.people.limits import CallerLimits, RateLimit, StreamLimit

LIVE = "/live/"


def limits(rate: float = 0, streams: int = 1) -> CallerLimits:
    return CallerLimits(RateLimit(rate, lambda: 0.0), RateLimit(0, lambda: 0.0), StreamLimit(streams))


async def call(app: ASGIApp, path: str = LIVE, role: Role = Role.VIEWER) -> Message:
    """The first message of the answer."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    caller = Caller.everywhere(role, "somebody")
    state = {"caller": caller, "match": ACCESS.find("GET", path)}
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b"", "state": state}
    await app(scope, receive, send)
    return sent[0]


async def ends(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def fails(_scope: Any, _receive: Any, _send: Any) -> None:
    raise OSError


async def lasts(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await asyncio.Event().wait()


async def test_slot_is_returned_when_the_stream_ends_fails_or_is_cancelled() -> None:
    given = limits()
    await call(LimitCheck(ends, given))
    with pytest.raises(OSError):
        await call(LimitCheck(fails, given))
    reading = asyncio.create_task(call(LimitCheck(lasts, given)))
    await asyncio.sleep(0)
    assert given.streams.open == 1
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert given.streams.open == 0


async def test_agent_has_no_rate() -> None:
    app: Callable[..., Any] = LimitCheck(ends, limits(rate=0.1))
    people = [(await call(app, "/cluster"))["status"] for _ in range(2)]
    agents = [(await call(app, "/agent/v1/staging/a/b", Role.AGENT))["status"] for _ in range(5)]
    assert (people, agents) == ([200, 429], [200] * 5)
