"""The beginning of a request, as uvicorn gets it from connections with limits of time."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from trainyard_storage.connections import LimitedConnection

LINE = b"Transfer-Encoding: identity\r\n"
HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 40\r\n"
BODY = (b"a\r\n" + LINE + b"\r\n").ljust(40, b"b")


def received(parts: tuple[bytes, ...]) -> bytes:
    """The body that an application gets of a request in those parts; b"" where it is refused."""
    body = bytearray()

    async def application(_scope: Any, receive: Any, send: Any) -> None:
        more = True
        while more:
            event = await receive()
            body.extend(event["body"])
            more = event["more_body"]
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def serve() -> None:
        config = uvicorn.Config(application, http=LimitedConnection, lifespan="off", log_config=None)
        connection = LimitedConnection(config=config, server_state=ServerState(), app_state={})
        connection.connection_made(Mock(**{"is_closing.return_value": False}))
        for part in parts:
            connection.data_received(part)
        await asyncio.wait_for(asyncio.gather(*connection.tasks), 60)

    asyncio.run(serve())
    return bytes(body)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((HEAD + LINE + b"\r\n" + BODY,), BODY),
        ((HEAD + b"\r\n" + BODY,), BODY),
        ((HEAD, b"\r\n" + BODY), BODY),
        ((HEAD[:-1], b"\n\r\n" + BODY), BODY),
        ((HEAD.replace(b"\r", b"") + b"\n" + BODY,), BODY),
        ((HEAD + LINE + b" , chunked\r\n\r\n" + BODY,), b""),
    ],
    ids=["at once", "without", "before its last line end", "in a line end", "bare line feeds", "folded"],
)
def test_identity_is_left_out_of_a_head_alone(parts: tuple[bytes, ...], expected: bytes) -> None:
    """Else a body would become shorter than its length, and the next request would be read from its middle."""
    assert received(parts) == expected
