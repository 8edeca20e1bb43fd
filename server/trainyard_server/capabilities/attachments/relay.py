"""The two ends of a stream, and what passes between them."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from trainyard_protocol.wire.attachments import ENDED, LOST, close_reason

_GRACEFUL = (1000, 1001)
_APPLICATIONS = range(3000, 5000)
"""Close codes that an end has chosen itself."""

StreamMessage = bytes | str


@dataclass(frozen=True, slots=True)
class Closed:
    """The close of one end: of its client (`code`, `reason`), or of a connection that broke."""

    code: int
    reason: str = ""


class StreamEnd(Protocol):
    """A WebSocket. `receive` and `send` wait while the other side is slower; one that is closed takes what is sent, and
    drops it."""

    async def receive(self) -> StreamMessage | Closed: ...

    async def send(self, message: StreamMessage) -> None: ...

    async def close(self, code: int, reason: str = "") -> None: ...


async def relay(client: StreamEnd, agent: StreamEnd, moved: Callable[[], None]) -> None:
    """Pass on the messages of both until either is closed, then close the other. `moved` is called with each."""

    async def pass_on(source: StreamEnd, target: StreamEnd, name: str) -> None:
        while not isinstance(message := await source.receive(), Closed):
            moved()
            await target.send(message)
        if message.code in _GRACEFUL:
            await target.close(ENDED, message.reason)
        elif message.code in _APPLICATIONS:
            await target.close(message.code, message.reason)
        else:
            await target.close(LOST, close_reason(message.reason or f"The connection to the {name} was lost."))

    ways = [
        asyncio.create_task(pass_on(client, agent, "command line")),
        asyncio.create_task(pass_on(agent, client, "agent")),
    ]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in done:
            way.result()
    finally:
        for way in ways:
            way.cancel()
        for way in ways:
            with suppress(asyncio.CancelledError):
                await way
