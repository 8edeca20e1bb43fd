"""WebSockets of clients, for threads."""

import contextlib
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Literal

from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

_OPEN_S = 30.0


class _Connection(ClientConnection):
    """Wakes the thread that reads, before the socket is closed: with TLS it may wait in the middle of a record, and
    `websockets` 17.4 then waits for that thread for ever."""

    def close_socket(self) -> None:
        with contextlib.suppress(OSError):  # it was closed before
            self.socket.shutdown(socket.SHUT_RDWR)
        super().close_socket()


class SocketRefused(Exception):
    """A WebSocket that was not opened. `status` and `body` are those of an HTTP answer; 0: there was none, or none of
    HTTP."""

    def __init__(self, message: str, status: int = 0, body: bytes = b"") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


def open_socket(
    url: str,
    headers: Mapping[str, str],
    tls: ssl.SSLContext | None,
    *,
    proxy: Literal[True] | None = None,
    protocols: Sequence[str] = (),
    most_bytes: int | None = None,
) -> ClientConnection:
    """Open a WebSocket at an address that begins with http; its user closes it. `proxy`: True is the environment's.
    `most_bytes` limits a message. Raises SocketRefused.

    No pong is waited for: one that comes behind data is read after it, which may wait for a slower end.
    """
    try:
        opening = connect(
            f"ws{url.removeprefix('http')}",
            additional_headers=headers,
            ssl=tls,
            proxy=proxy,
            subprotocols=[Subprotocol(protocol) for protocol in protocols] or None,
            compression=None,
            max_size=most_bytes,
            open_timeout=_OPEN_S,
            create_connection=_Connection,
            ping_timeout=None,
        )
        return opening.__enter__()
    except InvalidStatus as error:
        raise SocketRefused(str(error), error.response.status_code, bytes(error.response.body or b"")) from error
    except (OSError, WebSocketException) as error:
        raise SocketRefused(str(error) or type(error).__name__) from error
