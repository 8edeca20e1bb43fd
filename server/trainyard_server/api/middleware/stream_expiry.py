"""Ends event streams when the session or the token that opened them expires or is revoked."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_protocol.wire.attachments import REFUSED
from trainyard_server.storage.failures import DatabaseError, FailureLog

_END_EVENT = b"event: over\ndata:\n\n"  # makes a page reload, or go to the sign-in page

_failures = FailureLog(logging.getLogger(__name__))


async def serve(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    lasts_s: float | None,
    until_revoked: Callable[[], Awaitable[bool]],
) -> None:
    """Call `app`. An event stream ends after `lasts_s` seconds (None: never), or when `until_revoked` returns True or
    fails with a DatabaseError. Other responses are sent to their end."""
    loop = asyncio.get_running_loop()
    streaming = False
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        try:
            revoked = await until_revoked()
        except DatabaseError as error:  # the client gets the error when it reconnects
            _failures.record("Sessions and tokens cannot be read", error)
            revoked = True
        if revoked and not limit.expired():
            limit.reschedule(loop.time())

    async def sending(message: Message) -> None:
        nonlocal streaming, watching
        await send(message)
        if message["type"] != "http.response.start":
            streaming = streaming and message.get("more_body", False)
        elif _is_stream(message):
            streaming = True
            if lasts_s is not None:
                limit.reschedule(loop.time() + lasts_s)
            watching = asyncio.create_task(watch())

    try:
        async with asyncio.timeout(None) as limit:
            await app(scope, receive, sending)
    except TimeoutError:
        if not limit.expired():
            raise
        if streaming:
            await send({"type": "http.response.body", "body": _END_EVENT, "more_body": False})
    finally:
        if watching is not None:
            watching.cancel()


async def serve_socket(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    lasts_s: float | None,
    until_revoked: Callable[[], Awaitable[bool]],
) -> None:
    """Call `app` with a WebSocket. It is closed after `lasts_s` seconds (None: never), or when `until_revoked` returns
    True or fails with a DatabaseError."""

    async def ended() -> bool:
        try:
            async with asyncio.timeout(lasts_s):
                return await until_revoked()
        except TimeoutError:
            return True
        except DatabaseError as error:
            _failures.record("Tokens cannot be read", error)
            return True

    serving, ending = asyncio.ensure_future(app(scope, receive, send)), asyncio.create_task(ended())
    try:
        await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done() and ending.result():
            reason = "The token has expired or was revoked, or its owner has other roles."
            await send({"type": "websocket.close", "code": REFUSED, "reason": reason})
            serving.cancel()
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()
    finally:
        serving.cancel()
        ending.cancel()


def _is_stream(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
