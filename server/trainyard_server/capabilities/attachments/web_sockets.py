"""WebSockets as ends of streams: those that come to this server, and those that it opens to another one."""

import contextlib
import logging
from collections.abc import AsyncIterator

from anyio import to_thread
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from trainyard_protocol.errors import NotFound, TrainyardError, Unavailable
from trainyard_protocol.net.trust import client_context
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_protocol.wire.attachments import LOST, MOST_MESSAGE, REFUSED, close_reason
from trainyard_server.capabilities.attachments.attachments import Attachments, Side
from trainyard_server.capabilities.attachments.relay import Closed, StreamMessage, relay
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.access.permissions import Caller

_PASSED_ON = ("authorization", AGENT_KEY.lower())
_HOP = "x-trainyard-hop"
"""Header of what another server has passed on: it goes no further."""

_ABNORMAL = 1006
_OPEN_S = 10.0

_log = logging.getLogger(__name__)


async def serve(socket: WebSocket, attachment_id: str, stream: int, *, for_agent: bool = False) -> None:
    """Serve one end of a stream: the client's, or the agent's, whose key is in a header."""
    attachments: Attachments = socket.app.state.use_cases.of(Attachments)
    caller: Caller | None = None if for_agent else socket.state.caller
    end = SocketEnd(socket)
    await socket.accept()
    try:
        key = None if caller is not None else AgentKey(socket.headers.get(AGENT_KEY, ""))
        home = await to_thread.run_sync(attachments.home_of, attachment_id, caller, key)
        if not home:
            if caller is not None and not stream:
                await to_thread.run_sync(attachments.begin, attachment_id, socket.state.check_again)
            side: Side = "client" if caller is not None else "agent"
            await attachments.join(attachment_id, stream, side, end)
        elif _HOP in socket.headers:
            raise NotFound("It has ended.")
        else:
            async with _passed_on(home, socket) as peer:
                await relay(end, peer, lambda: None)
    except TrainyardError as error:
        await end.close(REFUSED, close_reason(error.message))
    finally:
        await end.close(LOST, "The server ends it.")


class SocketEnd:
    """A WebSocket that has come here."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def receive(self) -> StreamMessage | Closed:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            return Closed(message.get("code") or _ABNORMAL, message.get("reason") or "")
        data: bytes | None = message.get("bytes")
        return data if data is not None else message["text"]

    async def send(self, message: StreamMessage) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # closed; `receive` says so
            await (self._socket.send_bytes(message) if isinstance(message, bytes) else self._socket.send_text(message))

    async def close(self, code: int, reason: str = "") -> None:
        if self._socket.application_state is WebSocketState.CONNECTED:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the other side was first
                await self._socket.close(code, reason)


class PeerEnd:
    """A WebSocket that this server has opened to another one."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def receive(self) -> StreamMessage | Closed:
        try:
            return await self._connection.recv()
        except ConnectionClosed:
            return Closed(self._connection.close_code or _ABNORMAL, self._connection.close_reason or "")

    async def send(self, message: StreamMessage) -> None:
        with contextlib.suppress(ConnectionClosed):  # `receive` says so
            await self._connection.send(message)

    async def close(self, code: int, reason: str = "") -> None:
        await self._connection.close(code, reason)


@contextlib.asynccontextmanager
async def _passed_on(home: str, socket: WebSocket) -> AsyncIterator[PeerEnd]:
    """The other end of a WebSocket that belongs to the server at `home`: one to there with the same path and
    credentials. Raises Unavailable."""
    url = f"ws{home.removeprefix('http')}{socket.url.path}"
    headers = {name: socket.headers[name] for name in _PASSED_ON if name in socket.headers}
    try:
        connection = await connect(
            url,
            additional_headers=headers | {_HOP: "1"},
            ssl=client_context() if home.startswith("https://") else None,
            proxy=None,
            compression=None,
            max_size=MOST_MESSAGE,
            open_timeout=_OPEN_S,
            ping_timeout=None,
        )
    except (OSError, WebSocketException) as error:
        _log.warning("The server at %s, which has a shell or forwarder, does not answer: %s", home, error)
        raise Unavailable("The server that has it does not answer another one (--peer-url).") from error
    async with connection:
        yield PeerEnd(connection)
