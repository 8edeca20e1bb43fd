"""uvicorn for the storage: it listens on loopback, and on this machine's address on Docker's bridge.

Containers do not reach loopback. Other machines reach neither.
"""

import asyncio
import json
import logging
import os
import socket
from contextlib import closing, suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from typing import Any

import uvicorn

from trainyard_storage.app import StorageApp
from trainyard_storage.connections import LimitedConnection, LimitedServer
from trainyard_storage.tensorflow import ESTABLISHED

BACKLOG = 256
_ENGINE, _ENGINE_TIMEOUT_S = "unix:///var/run/docker.sock", 10.0
_POLL_S = 2.0  # interval of checks for the bridge
_HEAD_BYTES = 1 << 14
_KEEP_ALIVE_S = 5
_DRAIN_S = 2  # for pending requests at shutdown

_log = logging.getLogger(__name__)


class StorageConfig(uvicorn.Config):
    """uvicorn's settings, and the application itself."""

    def __init__(self, app: StorageApp) -> None:
        super().__init__(
            app,
            http=Connection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,  # addresses have the secret
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_DRAIN_S,
        )
        self.storage = app


class Connection(LimitedConnection):
    """A connection with a slot, which may be one to a proxy: of TensorFlow to Google's names, or of others."""

    config: StorageConfig

    def __init__(self, *given: Any, app_state: dict[str, Any], **named: Any) -> None:
        super().__init__(*given, app_state={**app_state, "connection": self}, **named)
        self._storage = self.config.storage
        self._early = bytearray()  # from inside of TLS, before its connection is made

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._storage.slots.add(self)
        if self._early:
            self.data_received(bytes(self._early))
            self._early.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_made:
            super().data_received(data)
        else:
            self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_made:
            super().connection_lost(exc)
        self._storage.slots.remove(self)

    @property
    def _is_made(self) -> bool:
        transport: asyncio.Transport | None = self.transport
        return transport is not None

    def _should_upgrade(self) -> bool:
        """Whether the request leaves HTTP. One without a secret gets its answer from the application."""
        proxy = self._storage.proxy
        return self.scope["method"] == "CONNECT" and proxy is not None and bool(proxy.secret(self._named()))

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Hand the connection over: uvicorn's way out of HTTP."""
        proxy, target = self._storage.proxy, event.target.decode("ascii")
        assert proxy is not None
        self.connections.discard(self)
        if proxy.is_ours(target, self._named()):
            self._begin(self._serve_as_google(target, proxy.secret(self._named())))
            return
        self._storage.slots.remove(self)
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        writer = asyncio.StreamWriter(self.transport, protocol, reader, self.loop)
        protocol.connection_made(self.transport)
        reader.feed_data(self.conn.trailing_data[0])
        self.transport.set_protocol(protocol)
        self._begin(proxy.tunnel(target, reader, writer))

    def _begin(self, work: Any) -> None:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve_as_google(self, target: str, secret: str) -> None:
        """Serve the application inside of TLS."""
        assert self._storage.proxy is not None
        state = {"secret": secret, "base": f"https://{target.rpartition(':')[0]}"}
        inside = Connection(config=self.config, server_state=self.server_state, app_state=state)
        try:
            context = await asyncio.to_thread(self._storage.proxy.context)
            self.transport.write(ESTABLISHED)
            secured = await self.loop.start_tls(
                self.transport, inside, context, server_side=True, ssl_handshake_timeout=self.head_s
            )
        except OSError:  # half a handshake, or a client that is gone
            self.transport.abort()
        except (ValueError, TypeError) as error:
            _log.error("no certificate for TensorFlow: %s", error)
            self.transport.abort()
        else:
            if secured is not None and not secured.is_closing():
                inside.connection_made(secured)
        finally:
            self._storage.slots.remove(self)

    def _named(self) -> dict[str, str]:
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}


class StorageServer(LimitedServer):
    """Serves an application until SIGTERM, and closes it."""

    def __init__(self, app: StorageApp, port: int, *, for_containers: str | None = None) -> None:
        """`for_containers`: listen on Docker's bridge too, at this address; "": at the one that the engine says."""
        super().__init__(StorageConfig(app))
        for name in ("uvicorn.error", "uvicorn.asgi"):
            logging.getLogger(name).setLevel(logging.ERROR)  # not a line for each request that is none
        self._app = app
        self._port = port
        self._for_containers = for_containers
        self._bridge: asyncio.Task[None] | None = None

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self._for_containers is not None:
            self._bridge = asyncio.create_task(self._serve_bridge())

    async def shutdown(self, sockets: Any = None) -> None:
        if self._bridge is not None:
            self._bridge.cancel()
            with suppress(asyncio.CancelledError):
                await self._bridge
        await super().shutdown(sockets)
        await self._app.close()

    async def _serve_bridge(self) -> None:
        """Listen on the bridge too, as soon as it exists; its address can change with the engine."""
        loop = asyncio.get_running_loop()
        while True:
            address = await asyncio.to_thread(self._bridge_address)
            if address:
                self._app.add_name(address)
                try:
                    server = await loop.create_server(self._connection, address, self._port, backlog=BACKLOG)
                except OSError as error:
                    _log.warning("cannot listen for containers (gs://) on %s:%d: %s", address, self._port, error)
                else:
                    try:
                        # "": the engine may be restarting
                        while await asyncio.to_thread(self._bridge_address) in (address, ""):
                            await asyncio.sleep(_POLL_S)
                    finally:
                        server.close()
            await asyncio.sleep(_POLL_S)

    def _bridge_address(self) -> str:
        return self._for_containers or bridge_address()

    def _connection(self) -> Connection:
        return Connection(config=self.config, server_state=self.server_state, app_state={})


def bridge_address() -> str:
    """This machine's address on the container engine's bridge; "" without an engine or a bridge."""
    scheme, _, path = os.environ.get("DOCKER_HOST", _ENGINE).partition("://")
    if scheme != "unix":
        return ""
    try:
        options = _bridge(path)["Options"]
    except (OSError, HTTPException, ValueError, KeyError):
        return ""
    import psutil

    addresses = psutil.net_if_addrs().get(options.get("com.docker.network.bridge.name", ""), [])
    return next((address.address for address in addresses if address.family == socket.AF_INET), "")


def _bridge(engine: str) -> dict[str, Any]:
    """Properties of the bridge, by the engine at that socket. Raises OSError, HTTPException, ValueError."""
    with closing(HTTPConnection("engine")) as connection:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(_ENGINE_TIMEOUT_S)
        connection.sock.connect(engine)
        connection.request("GET", "/networks/bridge")
        answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise HTTPException(f"{answer.status} {answer.reason}")
        properties: dict[str, Any] = json.loads(answer.read())
        return properties
