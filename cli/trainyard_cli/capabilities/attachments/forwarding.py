"""Ports of a replica on this machine."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from trainyard_cli.capabilities.attachments.command import LOST, why_closed
from trainyard_cli.output.text.safe import echo
from trainyard_protocol.errors import FailedPrecondition, TrainyardError, Unavailable
from trainyard_protocol.wire.attachments import CHUNK, ENDED, REFUSED, STDIN, AttachRequest, Control

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_BACKLOG = 128
_AGAIN_S, _PAUSE_S = 120.0, 1.0
"""The time in which a server that has ended may come back, and the pause between two tries."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A port of a replica, and the port of this machine that leads there; 0: any that is free."""

    local: int
    port: int


@dataclass(frozen=True, slots=True)
class _Attached:
    """An attachment with its id, and the stream on which connections are asked for. `request` names the replica."""

    request: AttachRequest
    id: str
    requests: ClientConnection


class Forwarder:
    """Listens on this machine, and connects what comes with the replica. Threads serve the connections."""

    def __init__(self, client: "Client", job: str, task: str, forwards: Sequence[Forward], address: str) -> None:
        """Raises FailedPrecondition for a local port that is in use, and what the server refuses."""
        self._client = client
        self._listeners = [(_listening(address, forward.local), forward.port) for forward in forwards]
        self._job = job
        ports = tuple(dict.fromkeys(forward.port for forward in forwards))
        self._attached = self._attach(AttachRequest(task=task, ports=ports))
        self._numbers = itertools.count(1)
        self._closed = threading.Event()

    @property
    def task(self) -> str:
        return self._attached.request.task

    @property
    def addresses(self) -> Mapping[str, int]:
        """The port of the replica by each address of this machine."""
        return {_address_of(listener): port for listener, port in self._listeners}

    def serve(self) -> int:
        """Serve until the replica ends, or the server stays away. Returns LOST."""
        for listener, port in self._listeners:
            threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()
        while True:
            requests = self._attached.requests
            with contextlib.suppress(ConnectionClosed):
                while True:
                    requests.recv()
            if self._closed.is_set():
                return LOST
            if requests.close_code in (REFUSED, ENDED):
                echo(f"ERROR: {why_closed(requests)}", err=True)
                return LOST
            echo(f"The server was restarted, or is not reached; trying for {_AGAIN_S / 60:g} minutes...", err=True)
            try:
                self._attach_again()
            except TrainyardError as error:
                if not self._closed.is_set():
                    echo(f"ERROR: {error.message} Nothing is forwarded any more.", err=True)
                return LOST
            echo("The server answers: forwarding again.", err=True)

    def _attach(self, request: AttachRequest) -> "_Attached":
        receipt = self._client.attach(self._job, request)
        request = request.model_copy(update={"task": receipt.task})
        return _Attached(request, receipt.id, self._client.open_stream(receipt.id, 0))

    def _attach_again(self) -> None:
        """Attach to the same replica once the server answers. Raises TrainyardError where it does not, or refuses."""
        before, deadline = self._attached, time.monotonic() + _AGAIN_S
        while True:
            try:
                self._attached = self._attach(before.request)
            except Unavailable:
                if time.monotonic() > deadline or self._closed.wait(_PAUSE_S):
                    raise
            else:
                self._client.detach(before.id)
                return

    def serve_until_interrupted(self) -> int:
        """The same until Ctrl-C, which is 0, and close."""
        try:
            return self.serve()
        except KeyboardInterrupt:
            return 0
        finally:
            self.close()

    def close(self) -> None:
        self._closed.set()
        for listener, _ in self._listeners:
            listener.close()
        self._attached.requests.close()
        self._client.detach(self._attached.id)

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._connect, args=(connection, port), daemon=True).start()

    def _connect(self, connection: socket.socket, port: int) -> None:
        number, attached = next(self._numbers), self._attached
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                attached.requests.send(Control(connect=(number, port)).text())
                with contextlib.closing(self._client.open_stream(attached.id, number)) as stream:
                    _pass_on(connection, stream)
                if stream.close_code == REFUSED:
                    echo(f"Port {port}: {stream.close_reason}", err=True)
            except ConnectionClosed:
                return  # `serve` says it
            except TrainyardError as error:
                echo(f"Port {port}: {error.message}", err=True)


def _pass_on(connection: socket.socket, stream: ClientConnection) -> None:
    """Pass on what comes from either side, until the replica's has ended or this one is closed."""

    def send() -> None:
        with contextlib.suppress(ConnectionClosed, OSError):
            while data := connection.recv(CHUNK):
                stream.send(bytes((STDIN,)) + data)
            stream.send(Control(eof=True).text())

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    try:
        for message in stream:
            if isinstance(message, bytes):
                connection.sendall(message[1:])
    except OSError:  # this side was closed
        stream.close(ENDED)
    except ConnectionClosed:
        pass  # lost: what came is all
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    sending.join()


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, port), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FailedPrecondition(
            f"Cannot listen on {address}:{port}: {reason}. Choose another local port: LOCAL:PORT, or 0:PORT for any."
        ) from error


def _address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
