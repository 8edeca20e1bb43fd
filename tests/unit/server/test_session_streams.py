"""A stream ends with its session; whatever else is answered is let alone, and nothing stays behind."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.types import ASGIApp, Message

from trainyard_server.api.stream_expiry import serve

LONG_S = 1000.0
SCOPE: dict[str, Any] = {"type": "http", "method": "GET", "asgi": {"spec_version": "2.3"}}


class Caller:
    """Takes what is sent to it, and stays."""

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

    async def ask(self, app: ASGIApp, ended: Callable[[], Awaitable[bool]], lasts_s: float = LONG_S) -> None:
        async with asyncio.timeout(60):
            await serve(app, SCOPE, self.receive, self.send, lasts_s=lasts_s, ended=ended)
        await asyncio.sleep(0)  # a task that was cancelled has its turn
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def never() -> bool:
    await asyncio.Event().wait()
    raise AssertionError


def stream(left: list[str], *, endless: bool = True, media_type: str = "text/event-stream") -> ASGIApp:
    async def parts() -> Any:
        try:
            yield "data: 1\n\n"
            await asyncio.sleep(LONG_S if endless else 0.05)
            yield "data: 2\n\n"
        finally:
            left.append("closed")

    return StreamingResponse(parts(), media_type=media_type)


async def test_stream_is_over_when_its_time_is() -> None:
    caller, left = Caller(), list[str]()
    await caller.ask(stream(left), never, lasts_s=0.01)
    assert caller.text == "data: 1\n\nevent: over\ndata:\n\n"
    assert caller.complete
    assert left == ["closed"]


async def test_stream_is_over_when_the_session_is_ended() -> None:
    caller, left, signed_out = Caller(), list[str](), asyncio.Event()
    asking = asyncio.create_task(
        serve(stream(left), SCOPE, caller.receive, caller.send, lasts_s=LONG_S, ended=_at(signed_out))
    )
    while not caller.text:
        await asyncio.sleep(0)
    assert not asking.done()
    signed_out.set()
    async with asyncio.timeout(60):
        await asking
    assert caller.text == "data: 1\n\nevent: over\ndata:\n\n"
    assert left == ["closed"]


def _at(signed_out: asyncio.Event) -> Callable[[], Awaitable[bool]]:
    async def ended() -> bool:
        return await signed_out.wait()

    return ended


async def test_stream_that_comes_to_its_own_end_leaves_nobody_waiting() -> None:
    caller = Caller()
    await caller.ask(stream([], endless=False), never)
    assert caller.text == "data: 1\n\ndata: 2\n\n"


async def test_stream_goes_on_where_the_server_goes_down_first() -> None:
    """It ends by itself then, as those of programs do."""

    async def closing() -> bool:
        return False

    caller = Caller()
    await caller.ask(stream([], endless=False), closing)
    assert caller.text == "data: 1\n\ndata: 2\n\n"


@pytest.mark.parametrize(
    "app", [stream([], endless=False, media_type="text/plain"), PlainTextResponse("data: 1\n\ndata: 2\n\n")]
)
async def test_whatever_is_no_stream_of_events_is_not_watched(app: ASGIApp) -> None:
    async def asked() -> bool:
        raise AssertionError

    caller = Caller()
    await caller.ask(app, asked, lasts_s=0)
    assert caller.text == "data: 1\n\ndata: 2\n\n"


async def test_error_of_the_application_stays_what_it_is() -> None:
    async def app(_scope: Any, _receive: Any, _send: Any) -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        await Caller().ask(app, never)


async def test_end_that_comes_behind_the_last_part_adds_nothing() -> None:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n"})
        await asyncio.sleep(LONG_S)

    caller = Caller()
    await caller.ask(app, never, lasts_s=0.01)
    assert caller.text == "data: 1\n\n"
