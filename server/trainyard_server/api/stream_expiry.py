"""Streams of events end with the session that asked for them: nothing else of it goes on without end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainyard_server.storage.failures import Troubles

_OVER = b"event: over\ndata:\n\n"  # to a page: find out why, and come back if you may

_troubles = Troubles(logging.getLogger(__name__))


async def serve(
    app: ASGIApp,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    lasts_s: float,
    ended: Callable[[], Awaitable[bool]],
) -> None:
    """Lets `app` answer. A stream of events is over after `lasts_s` seconds, or as soon as `ended` says so or cannot
    know it. Every other answer comes to its end: it was asked for in time."""
    loop = asyncio.get_running_loop()
    streaming = False
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        try:
            over = await ended()
        except SQLAlchemyError as error:  # whoever comes back is told
            _troubles.note("It cannot be known whether a session was ended", error)
            over = True
        if over and not limit.expired():
            limit.reschedule(loop.time())

    async def sending(message: Message) -> None:
        nonlocal streaming, watching
        await send(message)
        if message["type"] != "http.response.start":
            streaming = streaming and message.get("more_body", False)
        elif _is_stream(message):
            streaming = True
            limit.reschedule(loop.time() + lasts_s)
            watching = asyncio.create_task(watch())

    try:
        async with asyncio.timeout(None) as limit:
            await app(scope, receive, sending)
    except TimeoutError:
        if not limit.expired():
            raise
        if streaming:
            await send({"type": "http.response.body", "body": _OVER, "more_body": False})
    finally:
        if watching is not None:
            watching.cancel()


def _is_stream(message: Message) -> bool:
    return Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
