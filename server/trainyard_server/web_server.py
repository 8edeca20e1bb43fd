"""The HTTP server: uvicorn with limits of time and number for connections.

A connection that sends nothing, or too slowly, or takes no answer is closed, so that half-open ones do not add up. One
that waits for the server (a long poll, an event stream) is not.
"""

import asyncio
import logging
import re
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainyard_server.config.network import BACKLOG, NetworkSettings
from trainyard_server.storage import descriptors
from trainyard_server.storage.events.notifier import Notifier

if TYPE_CHECKING:
    from trainyard_server.config.own_authority import OwnAuthority

HEAD_S = 10.0
"""For the head of a request, from its first byte; for the first one from the start of the connection."""

BODY_S = 30.0
"""Between two parts of a body."""

DISCARD_S = 60.0
"""For the rest of a body whose request was answered before."""

READ_S = 300.0
"""For a client to take what was sent."""

KEEP_ALIVE_S = 75
"""Between two requests."""

ACCEPTED_AT_ONCE = 16
"""New connections in one turn of the event loop. The others wait in the kernel, so that a flood of them can come no
faster than requests are served, and does not delay the requests on other connections."""

_IDENTITY = re.compile(rb"\r\nTransfer-Encoding:[ \t]*identity[ \t]*(?=\r\n)", re.IGNORECASE)
_DRAIN_S = 5  # for pending requests at shutdown
_RESERVED = 128  # descriptors that are kept for files and the database
_LOG_EVERY_S = 60.0
_TICKS = 10  # of uvicorn, in a second

logger = logging.getLogger(__name__)


class ServerConfig(uvicorn.Config):
    """uvicorn's settings, and ours of the network."""

    reached: NetworkSettings = NetworkSettings()


@dataclass(frozen=True, slots=True)
class GoogleFront:
    """A second port of the server, for Google's clients: with TLS, and an authority of its own."""

    listeners: Sequence[socket.socket]
    authority: "OwnAuthority"


def serve(
    app: FastAPI,
    listeners: Sequence[socket.socket],
    reached: NetworkSettings,
    front: GoogleFront | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT."""
    config = ServerConfig(
        app,
        http=Connection,
        ws="none",
        loop="trainyard_server.web_server:EventLoop",
        log_config=None,
        access_log=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=_DRAIN_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        forwarded_allow_ips=list(reached.believed),
    )
    config.reached = reached
    WebServer(config, app.state.use_cases.backend.notifier, front).run(sockets=list(listeners))


def most_connections(limit: int) -> int:
    """The number of connections that a process with so many descriptors accepts."""
    return limit - max(limit // 10, min(_RESERVED, limit // 2))


class EventLoop(asyncio.SelectorEventLoop):
    """Limits the TLS handshake as the head of a request."""

    async def create_server(self, *given: Any, **named: Any) -> asyncio.Server:
        if named.get("ssl") is not None:
            named["ssl_handshake_timeout"] = HEAD_S
        return await super().create_server(*given, **named)


class _Occasionally:
    """A log line that would come with each connection: it comes once a minute."""

    def __init__(self) -> None:
        self._next_at = float("-inf")

    def warn(self, message: str, *values: object) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_at:
            self._next_at = now + _LOG_EVERY_S
            logger.warning(message, *values)


_full = _Occasionally()
_stranger = _Occasionally()
_beginning: WeakSet["Connection"] = WeakSet()
"""Connections in the TLS handshake: uvicorn does not count them yet."""


class Connection(H11Protocol):
    """A connection that `end_if_overdue` ends. uvicorn itself limits the time between two requests."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._head_since: float | None = None
        self._body_at = 0.0
        self._answered_at = 0.0
        self._unread_since: float | None = None
        if _is_full(len(self.connections) + len(_beginning) + 1):
            raise ConnectionRefusedError  # the event loop drops the socket
        _beginning.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _beginning.discard(self)
        self._head_since = self.loop.time()
        peer = str(transport.get_extra_info("peername")[0])
        own = str(transport.get_extra_info("sockname")[0])
        if isinstance(self.config, ServerConfig) and peer != own and not self.config.reached.admits(peer):
            _stranger.warn("Closed a connection from %s, which is not the proxy of --behind-proxy.", peer)
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE:
            data = _without_identity(data)
        super().data_received(data)
        self._body_at = self.loop.time()
        self._note_head()

    def on_response_complete(self) -> None:
        self._answered_at = self.loop.time()
        super().on_response_complete()
        self._head_since = None
        self._note_head()

    def pause_writing(self) -> None:
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

    def end_if_overdue(self, now: float) -> None:
        """Close the connection if its client has been too slow."""
        if self.transport.is_closing() and self._unread_since is None:
            self._unread_since = now
        if self.flow.read_paused:  # the server has not taken what came
            self._body_at = now
        if self._is_overdue(now):
            self.transport.abort()

    def _is_overdue(self, now: float) -> bool:
        if self._unread_since is not None and now - self._unread_since > READ_S:
            return True
        if self.conn.their_state is h11.IDLE:
            return self._head_since is not None and now - self._head_since > HEAD_S
        if self.conn.their_state is not h11.SEND_BODY:
            return False
        if self.cycle.response_complete:
            return now - self._answered_at > DISCARD_S
        return now - self._body_at > BODY_S

    def _note_head(self) -> None:
        """Note when the head of a request has begun, or that it is complete."""
        if self.conn.their_state is not h11.IDLE:
            self._head_since = None
        elif self._head_since is None and self.conn.trailing_data[0]:
            self._head_since = self.loop.time()


def _without_identity(data: bytes) -> bytes:
    """The head of a request without `Transfer-Encoding: identity`, which older HTTP had and TensorFlow's `gs://` sends
    beside the length: h11 refuses it."""
    head, end, rest = data.partition(b"\r\n\r\n")
    return _IDENTITY.sub(b"", head + end) + rest


def _is_full(connections: int) -> bool:
    limit = descriptors.limit()
    most = most_connections(limit)
    if connections <= most:
        return False
    _full.warn(
        "All %d connections are in use, of %d file descriptors: new ones are closed until others end. "
        "Find out who holds them (ss -tn), or raise the limit (ulimit -n).",
        most,
        limit,
    )
    return True


class WebServer(uvicorn.Server):
    """Ends overdue connections; on a signal also long polls and event streams, so that no connection is aborted."""

    def __init__(self, config: ServerConfig, notifier: Notifier, front: GoogleFront | None = None) -> None:
        super().__init__(config)
        self._notifier = notifier
        self._certificate = config.reached.certificate
        self._front = front

    async def startup(self, sockets: Any = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_report)
        if self._certificate is not None:
            self.config.ssl = self._certificate.context
        await super().startup(sockets)
        if self._front is not None:
            self.servers += [
                await self._serve_front(listener, self._front.authority) for listener in self._front.listeners
            ]
        for listener in (*sockets, *(self._front.listeners if self._front is not None else ())):
            listener.listen(BACKLOG)  # asyncio sets the kernel's queue, too, to what it accepts at once

    async def _serve_front(self, listener: socket.socket, authority: "OwnAuthority") -> asyncio.Server:
        """Serve the same application as uvicorn's own listener does."""

        def connection() -> Connection:
            return Connection(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )

        return await asyncio.get_running_loop().create_server(
            connection,
            sock=listener,
            ssl=authority.context,
            backlog=self.config.backlog,
        )

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, Connection):
                    connection.end_if_overdue(now)
            if self._certificate is not None:
                self._certificate.refresh(datetime.now(UTC))
            if self._front is not None:
                self._front.authority.refresh(datetime.now(UTC))
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Requests a clean shutdown with exit status 0. A second Ctrl-C does not wait for it."""
        self._notifier.close()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop. Where no connection can be accepted, which is tried again after a second, this is
    one line a minute."""
    if descriptors.is_exhausted(context.get("exception")):
        limit = descriptors.limit()
        _full.warn(
            "No file descriptor is left, of %d: no connection is accepted until some are closed.", limit
        )
    else:
        loop.default_exception_handler(context)
