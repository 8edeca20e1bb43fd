"""Commands in pods and connections to their ports, by the subresources `exec` and `portforward`.

Each message of these WebSockets is a channel (one byte) and data. Source: k8s.io/apimachinery, pkg/util/remotecommand;
k8s.io/kubelet, pkg/cri/streaming/portforward.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Final
from urllib.parse import urlencode

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeObject
from trainyard_agent.engines.kubernetes.pods.objects import CONTAINER, DOMAIN
from trainyard_agent.host import process_tags
from trainyard_agent.runtimes.attaching.guard import HANG_UP_S
from trainyard_agent.runtimes.attaching.inside_end import end_command
from trainyard_protocol.wire.attachments import STDERR, STDOUT, Channel, Terminal, TerminalSize

_log = logging.getLogger(__name__)

_ANNOTATION = f"{DOMAIN}attachment-"
"""The beginning of a pod's annotation. The id of an attachment follows, whose processes may have outlived its agent."""

_V5, _V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_DATA, _PORT_ERROR = 0, 1
_PORT_BYTES: Final = 2  # the first message of each channel of a port is its number
_FAILED, _UNKNOWN = 1, 255
_LOOK_S = 10.0
_ENDLESS: Final = (
    b"trainyard: Kubernetes before 1.30 cannot tell a command that its input has ended: if it waits for that, Ctrl-C.\n"
)


def exec_in_pod(client: KubeClient, pod: str, command: Sequence[str], terminal: Terminal | None) -> "PodCommand":
    """Start a command by the pod's own sh, which marks it. An annotation of the pod tells the next agent of it. Raises
    KubeError."""
    attachment = process_tags.new_attachment()
    client.patch("pods", pod, _annotation(attachment, ""))
    kind = [f"TERM={terminal.kind}"] if terminal is not None else []
    variables = [f"{process_tags.ATTACHMENT}={attachment}", *kind]
    words = ("/bin/sh", "-c", f'export {" ".join(variables)}; exec "$@"', "sh", *command)
    end = partial(_end, client, pod, attachment, int(HANG_UP_S))
    try:
        started = PodCommand(_open_exec(client, pod, words, terminal), terminal, end)
    except KubeError:
        client.patch("pods", pod, _annotation(attachment, None))
        raise
    if terminal is not None:
        started.resize(terminal)
    return started


def end_left(client: KubeClient, pod: KubeObject, pool: Executor) -> None:
    """End what an agent that was killed has left in a pod."""
    metadata = pod["metadata"]
    for name in metadata.get("annotations") or {}:
        if name.startswith(_ANNOTATION):
            pool.submit(_end, client, metadata["name"], name.removeprefix(_ANNOTATION), 0)


def _open_exec(client: KubeClient, pod: str, command: Sequence[str], terminal: Terminal | None) -> ClientConnection:
    query = [("container", CONTAINER), ("stdin", "true"), ("stdout", "true")]
    query += [("tty", "true")] if terminal is not None else [("stderr", "true")]
    query += [("command", word) for word in command]
    return client.open_socket("pods", pod, "exec", urlencode(query), (_V5, _V4))


def _end(client: KubeClient, pod: str, attachment: str, grace_s: int) -> None:
    """End a command and what it has started: Kubernetes lets them go on when their connection is closed. What cannot be
    ended now is left to the next agent."""
    try:
        PodCommand(_open_exec(client, pod, end_command(attachment, grace_s), None), None).wait()
        client.patch("pods", pod, _annotation(attachment, None))
    except KubeError as error:
        _log.warning("what an attachment has started in pod %s cannot be ended: %s", pod, error)


def _annotation(attachment: str, value: str | None) -> KubeObject:
    """A part of a pod. None removes the annotation."""
    return {"metadata": {"annotations": {f"{_ANNOTATION}{attachment}": value}}}


def port_of_pod(client: KubeClient, pod: str, port: int) -> "PodPort":
    """Raises KubeError."""
    return PodPort(client.open_socket("pods", pod, "portforward", urlencode({"ports": port}), (_V4,)))


class _PodSocket:
    """A WebSocket to a subresource of a pod."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._is_untold = False

    def _receive(self) -> bytes:
        """The next message; empty at the end. Raises TimeoutError where nothing comes for a while after the input has
        ended, and the other side cannot be told that."""
        while True:
            try:
                message = self._connection.recv(_LOOK_S)
            except TimeoutError:
                if self._is_untold:
                    raise
                continue
            except ConnectionClosed:
                return b""
            if isinstance(message, bytes) and message:
                return message

    def _send(self, channel: int, data: bytes) -> None:
        with contextlib.suppress(ConnectionClosed):  # `read` ends
            self._connection.send(bytes((channel,)) + data)

    def close(self) -> None:
        self._connection.close()

    def release(self) -> None:
        pass


class PodCommand(_PodSocket):
    def __init__(
        self, connection: ClientConnection, terminal: Terminal | None, end: Callable[[], None] = lambda: None
    ) -> None:
        """`end` ends the command from elsewhere, and what it has left."""
        super().__init__(connection)
        self._end = end
        self._on_terminal = terminal is not None
        self._status: bytes = b""

    def read(self) -> tuple[Channel, bytes] | None:
        try:
            while message := self._receive():
                channel, data = message[0], message[1:]
                if channel == _ERROR:
                    self._status += data
                elif data and channel in (_STDOUT, _STDERR):
                    return (STDOUT if channel == _STDOUT else STDERR), data
        except TimeoutError:
            self._is_untold = False
            return STDERR, _ENDLESS
        return None

    def write(self, data: bytes) -> None:
        self._send(_STDIN, data)

    def end_input(self) -> None:
        if self._on_terminal:
            self.write(b"\x04")
        elif self._connection.subprotocol == _V5:
            self._send(_CLOSE, bytes((_STDIN,)))
        else:
            self._is_untold = True

    def resize(self, size: TerminalSize) -> None:
        if self._on_terminal:
            self._send(_RESIZE, json.dumps({"Width": size.columns, "Height": size.rows}).encode())

    def close(self) -> None:
        super().close()
        end, self._end = self._end, lambda: None
        end()

    def wait(self) -> None:
        """Wait for the end, whatever it writes."""
        while self.read() is not None:
            pass
        self.close()

    def exit_code(self) -> int:
        try:
            status = json.loads(self._status)
            if status["status"] == "Success":
                return 0
            causes = (status.get("details") or {}).get("causes") or ()
            return next((int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"), _UNKNOWN)
        except (ValueError, KeyError, TypeError):  # the connection was lost, or the pod killed
            return _UNKNOWN


class PodPort(_PodSocket):
    def __init__(self, connection: ClientConnection) -> None:
        super().__init__(connection)
        self._begun: set[int] = set()
        self._failed = False

    def read(self) -> tuple[Channel, bytes] | None:
        with contextlib.suppress(TimeoutError):
            while message := self._receive():
                channel, data = message[0], message[1:]
                if channel not in self._begun:
                    self._begun.add(channel)
                    data = data[_PORT_BYTES:]
                if channel == _PORT_ERROR and data:
                    self._failed = True
                    return STDERR, data
                if channel == _DATA and data:
                    return STDOUT, data
        return None

    def write(self, data: bytes) -> None:
        self._send(_DATA, data)

    def end_input(self) -> None:
        """The protocol cannot close half of a connection: what still comes is read, until nothing does."""
        self._is_untold = True

    def resize(self, size: TerminalSize) -> None:
        pass

    def exit_code(self) -> int:
        return _FAILED if self._failed else 0
