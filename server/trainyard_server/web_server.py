"""The HTTP server: uvicorn with limits of time (`trainyard_storage.connections`) and number for connections."""

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import uvicorn
from fastapi import FastAPI

from trainyard_protocol.wire.attachments import MOST_MESSAGE
from trainyard_server.config.network import BACKLOG, NetworkSettings
from trainyard_server.storage import descriptors
from trainyard_server.storage.events.notifier import Notifier
from trainyard_storage.connections import LimitedConnection, LimitedServer

if TYPE_CHECKING:
    from trainyard_storage.authority import OwnAuthority

KEEP_ALIVE_S = 75
"""Time between two requests."""

ACCEPTED_AT_ONCE = 16
"""New connections in one turn of the event loop. The others wait in the kernel, so that a flood of them can come no
faster than requests are served, and does not delay the requests on other connections."""

_DRAIN_S = 5  # for pending requests at shutdown
_RESERVED = 128  # descriptors that are kept for files and the database
_LOG_EVERY_S = 60.0

logger = logging.getLogger(__name__)


class ServerConfig(uvicorn.Config):
    """uvicorn's settings, and ours of the network."""

    reached: NetworkSettings = NetworkSettings()


@dataclass(frozen=True, slots=True)
class TlsPort:
    """A further port of the server, with TLS and an authority of its own: for Google's clients, for other machines."""

    listeners: Sequence[socket.socket]
    authority: "OwnAuthority"


def serve(
    app: FastAPI, listeners: Sequence[socket.socket], reached: NetworkSettings, further: Sequence[TlsPort] = ()
) -> None:
    """Serve until SIGTERM or SIGINT, at the further ports too."""
    config = ServerConfig(
        app,
        http=Connection,
        ws="websockets-sansio",
        ws_max_size=MOST_MESSAGE,
        ws_per_message_deflate=False,
        ws_ping_timeout=None,  # a stream that waits for its slower end reads no pong
        loop="trainyard_server.web_server:EventLoop",
        log_config=None,
        access_log=False,
        backlog=ACCEPTED_AT_ONCE,
        timeout_graceful_shutdown=_DRAIN_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        forwarded_allow_ips=list(reached.believed),
    )
    config.reached = reached
    WebServer(config, app.state.use_cases.backend.notifier, further).run(sockets=list(listeners))


def most_connections(limit: int) -> int:
    """The number of connections that a process with so many descriptors accepts."""
    return limit - max(limit // 10, min(_RESERVED, limit // 2))


class EventLoop(asyncio.SelectorEventLoop):
    """Limits the TLS handshake as the head of a request."""

    async def create_server(self, *given: Any, **named: Any) -> asyncio.Server:
        if named.get("ssl") is not None:
            named["ssl_handshake_timeout"] = Connection.head_s
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


class Connection(LimitedConnection):
    """A connection that is refused where too many are open, or where its peer is not the proxy in front."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if _is_full(len(self.connections) + len(_beginning) + 1):
            raise ConnectionRefusedError  # the event loop drops the socket
        _beginning.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _beginning.discard(self)
        peer = str(transport.get_extra_info("peername")[0])
        own = str(transport.get_extra_info("sockname")[0])
        if isinstance(self.config, ServerConfig) and peer != own and not self.config.reached.admits(peer):
            _stranger.warn("Closed a connection from %s, which is not the proxy of --behind-proxy.", peer)
            transport.abort()


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


class WebServer(LimitedServer):
    """Ends long polls and event streams on a signal, so that no connection is aborted."""

    def __init__(self, config: ServerConfig, notifier: Notifier, further: Sequence[TlsPort] = ()) -> None:
        super().__init__(config)
        self._notifier = notifier
        self._certificate = config.reached.certificate
        self._further = further

    async def startup(self, sockets: Any = None) -> None:
        asyncio.get_running_loop().set_exception_handler(_report)
        if self._certificate is not None:
            self.config.ssl = self._certificate.context
        await super().startup(sockets)
        for port in self._further:
            self.servers += [await self._serve_tls(listener, port.authority) for listener in port.listeners]
        for listener in (*sockets, *(listener for port in self._further for listener in port.listeners)):
            listener.listen(BACKLOG)  # asyncio sets the kernel's queue, too, to what it accepts at once

    async def _serve_tls(self, listener: socket.socket, authority: "OwnAuthority") -> asyncio.Server:
        """Serve the same application as uvicorn's own listener does."""

        def connection() -> Connection:
            return Connection(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

        return await asyncio.get_running_loop().create_server(
            connection, sock=listener, ssl=authority.context, backlog=self.config.backlog
        )

    def on_second(self) -> None:
        now = datetime.now(UTC)
        if self._certificate is not None:
            self._certificate.refresh(now)
        for port in self._further:
            port.authority.refresh(now)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._notifier.close()
        super().handle_exit(sig, frame)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error of the event loop. Where no connection can be accepted, which is tried again after a second, this is
    one line a minute."""
    if descriptors.is_exhausted(context.get("exception")):
        limit = descriptors.limit()
        _full.warn("No file descriptor is left, of %d: no connection is accepted until some are closed.", limit)
    else:
        loop.default_exception_handler(context)
