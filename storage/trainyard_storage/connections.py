"""uvicorn with limits of time for connections: the storage's own servers and the control plane stand on it.

A connection that sends nothing, or too slowly, or takes no answer is closed, so that half-open ones do not add up. One
that waits for the server (a long poll, an event stream) is not.
"""

import asyncio
import re
import signal
from types import FrameType
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

_HEAD_END = re.compile(rb"\n\r?\n")  # as h11 finds it
_IDENTITY = re.compile(rb"\r\nTransfer-Encoding:[ \t]*identity[ \t]*(?=\r\n[^ \t])", re.IGNORECASE)
_TICKS = 10  # of uvicorn, in a second


class LimitedConnection(H11Protocol):
    """A connection that `end_if_overdue` ends. uvicorn itself limits the time between two requests."""

    head_s: ClassVar[float] = 10.0
    """Time for the head of a request, from its first byte; for the first one from the start of the connection."""
    body_s: ClassVar[float] = 30.0
    """Time between two parts of a body."""
    discard_s: ClassVar[float] = 60.0
    """Time for the rest of a body whose request was answered before."""
    read_s: ClassVar[float] = 300.0
    """Time for a client to take what was sent."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.access_log = False  # addresses may have secrets
        self._head_since: float | None = None
        self._body_at = 0.0
        self._answered_at = 0.0
        self._unread_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since = self.loop.time()

    def data_received(self, data: bytes) -> None:
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:  # a head begins here
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
        if self._unread_since is not None and now - self._unread_since > self.read_s:
            return True
        if self.conn.their_state is h11.IDLE:
            return self._head_since is not None and now - self._head_since > self.head_s
        if self.conn.their_state is not h11.SEND_BODY:
            return False
        if self.cycle.response_complete:
            return now - self._answered_at > self.discard_s
        return now - self._body_at > self.body_s

    def _note_head(self) -> None:
        """Note when the head of a request has begun, or that it is complete."""
        if self.conn.their_state is not h11.IDLE:
            self._head_since = None
        elif self._head_since is None and self.conn.trailing_data[0]:
            self._head_since = self.loop.time()


def _without_identity(data: bytes) -> bytes:
    """The beginning of a request without `Transfer-Encoding: identity` in its head, which older HTTP had and
    TensorFlow's `gs://` sends beside the length: h11 refuses it. What is behind the head stays as it is."""
    end = _HEAD_END.search(data)
    size = end.end() if end is not None else len(data)
    return _IDENTITY.sub(b"", data[:size]) + data[size:]


class LimitedServer(uvicorn.Server):
    """Ends overdue connections. A signal requests a clean shutdown with exit status 0."""

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                if isinstance(connection, LimitedConnection):
                    connection.end_if_overdue(now)
            self.on_second()
        return await super().on_tick(counter)

    def on_second(self) -> None:
        """Do what is due every second."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Request a shutdown. A second Ctrl-C does not wait for it."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True
