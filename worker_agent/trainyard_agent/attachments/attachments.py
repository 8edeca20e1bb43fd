"""Serves the attachments that the server orders: commands in replicas, and connections to their ports. Each has threads
of its own, which end with it."""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Protocol

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from trainyard_agent.runtimes.attaching.attachment import Attachment, NotAttachable
from trainyard_agent.runtimes.base import EngineUnavailable, Runtime
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.wire.attachments import CHUNK, ENDED, REFUSED, STDERR, AttachOrder, Control, close_reason

_log = logging.getLogger(__name__)


class Streams(Protocol):
    """The server's side of streams."""

    def open_stream(self, attachment_id: str, stream: int) -> ClientConnection:
        """Raises Unavailable."""
        ...


class _Serving:
    """The parts of one attachment: connections and what they are connected with."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: list[ClientConnection | Attachment] = []
        self._ended = False

    def add(self, part: ClientConnection | Attachment) -> bool:
        """Whether it may go on."""
        with self._lock:
            self._open.append(part)
            return not self._ended

    def discard(self, part: ClientConnection | Attachment) -> None:
        with self._lock:
            self._open.remove(part)

    def end(self) -> None:
        """End all parts, also those that wait for the other side."""
        with self._lock:
            self._ended, parts = True, list(self._open)
        for part in parts:
            if isinstance(part, ClientConnection):
                part.close(REFUSED, "The replica has ended, or this was closed from elsewhere.")
            else:
                part.close()


class ReplicaAttachments:
    def __init__(self, runtime: Runtime, streams: Streams) -> None:
        self._runtime = runtime
        self._streams = streams
        self._serving: dict[str, _Serving] = {}

    def follow(self, orders: Sequence[AttachOrder]) -> None:
        """Serve these attachments, and end all others."""
        ids = {order.id for order in orders}
        for attachment_id in [id_ for id_ in self._serving if id_ not in ids]:
            _start(self._serving.pop(attachment_id).end)
        for order in orders:
            if order.id not in self._serving:  # one that has ended by itself may be ordered for a moment
                serving = self._serving[order.id] = _Serving()
                _start(partial(self._serve, order, serving))

    def close(self) -> None:
        """End all."""
        self.follow(())

    def _serve(self, order: AttachOrder, serving: _Serving) -> None:
        what = f"{'forwarder of ports' if order.ports else 'command'} for {order.task} of run {order.run_id}"
        _log.info("begin of a %s", what)
        if order.ports:
            self._stream(order, 0, serving, partial(self._serve_ports, order, serving))
        else:
            execute = partial(self._runtime.execute, order.run_id, order.task, order.command, order.terminal)
            self._stream(order, 0, serving, partial(_attach, serving, execute))
        _log.info("end of a %s", what)

    def _serve_ports(self, order: AttachOrder, serving: _Serving, requests: ClientConnection) -> None:
        """Connect as the client asks for it."""
        for message in requests:
            request = Control.model_validate_json(message) if isinstance(message, str) else Control()
            if request.connect is not None:
                stream, port = request.connect
                connect = partial(self._connect, order, port)
                attach = partial(_attach, serving, connect, is_port=True)
                _start(partial(self._stream, order, stream, serving, attach))

    def _connect(self, order: AttachOrder, port: int) -> Attachment:
        if port not in order.ports:
            raise NotAttachable(f"Port {port} was not asked for.")
        return self._runtime.connect(order.run_id, order.task, port)

    def _stream(
        self, order: AttachOrder, stream: int, serving: _Serving, work: Callable[[ClientConnection], None]
    ) -> None:
        """Open a stream and work on it."""
        try:
            with closing(self._streams.open_stream(order.id, stream)) as connection:
                if serving.add(connection):
                    work(connection)
                serving.discard(connection)
        except (TrainyardError, ConnectionClosed) as error:
            _log.warning("stream %d to %s of run %s cannot go on: %s", stream, order.task, order.run_id, error)


def _attach(
    serving: _Serving, open_attachment: Callable[[], Attachment], connection: ClientConnection, *, is_port: bool = False
) -> None:
    """Pass on what comes from either side until one has ended."""
    try:
        attachment = open_attachment()
    except (NotAttachable, EngineUnavailable, OSError) as error:
        connection.close(REFUSED, close_reason(str(error)))
        return
    sending = _start(lambda: _send(connection, attachment, is_port=is_port))
    try:
        if serving.add(attachment):
            _receive(connection, attachment)
    finally:
        attachment.close()
        sending.join()
        serving.discard(attachment)
        attachment.release()


def _receive(connection: ClientConnection, attachment: Attachment) -> None:
    for message in connection:
        if isinstance(message, bytes):
            attachment.write(message[1:])
            continue
        control = Control.model_validate_json(message)
        if control.resize is not None:
            attachment.resize(control.resize)
        if control.eof:
            attachment.end_input()


def _send(connection: ClientConnection, attachment: Attachment, *, is_port: bool) -> None:
    """Send the output to its end, then how it ended."""
    problem = b""
    with contextlib.suppress(ConnectionClosed):  # the other thread ends the attachment
        while (output := attachment.read()) is not None:
            channel, data = output
            if is_port and channel == STDERR:
                problem = (problem + data)[:CHUNK]
                continue
            for at in range(0, len(data), CHUNK):
                connection.send(bytes((channel,)) + data[at : at + CHUNK])
        code = attachment.exit_code()
        if is_port and code:
            connection.close(REFUSED, close_reason(problem.decode(errors="replace").strip() or "It is not connected."))
            return
        if not is_port:
            connection.send(Control(exit_code=code).text())
        connection.close(ENDED)


def _start(work: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        try:
            work()
        except Exception:  # noqa: BLE001 - one must not end the agent
            _log.exception("an attachment failed")

    thread = threading.Thread(target=run, daemon=True, name="attachment")
    thread.start()
    return thread
