"""Event streams end with their session; other responses are complete; no task is left running."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import StreamingResponse
from starlette.types import ASGIApp, Message

from trainyard_server.api.middleware.stream_expiry import serve

LONG_S = 1000.0
SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "asgi": {"spec_version": "2.3"}}


class Caller:
    """A client that reads and never disconnects."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    async def send(self, message: Message) -> None:
        assert not self.complete, "nothing may follow the end of an answer"
        self.sent.append(message)

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    @property
    def complete(self) -> bool:
        last = self.sent[-1] if self.sent else {"type": "none"}
        return last["type"] == "http.response.body" and not last.get("more_body", False)

    @property
    def text(self) -> str:
        return b"".join(message.get("body", b"") for message in self.sent).decode()

    async def ask(self, app: ASGIApp, until_revoked: Callable[[], Awaitable[bool]], lasts_s: float = LONG_S) -> None:
        async with asyncio.timeout(60):
            await serve(app, SCOPE, self.receive, self.send, lasts_s=lasts_s, until_revoked=until_revoked)
        await asyncio.sleep(0)  # lets a cancelled task run
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def never() -> bool:
    await asyncio.Event().wait()
    raise AssertionError


def stream(closed: list[str], *, endless: bool = True, media_type: str = "text/event-stream") -> ASGIApp:
    async def parts() -> Any:
        try:
            yield "data: 1\n\n"
            await asyncio.sleep(LONG_S if endless else 0.05)
            yield "data: 2\n\n"
        finally:
            closed.append("closed")

    return StreamingResponse(parts(), media_type=media_type)


async def test_stream_ends_when_the_session_expires() -> None:
    caller, closed = Caller(), list[str]()
    await caller.ask(stream(closed), never, lasts_s=0.01)
    assert caller.text == "data: 1\n\nevent: over\ndata:\n\n"
    assert caller.complete
    assert closed == ["closed"]


async def test_timeout_error_of_the_application_is_raised() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await Caller().ask(app, never)
