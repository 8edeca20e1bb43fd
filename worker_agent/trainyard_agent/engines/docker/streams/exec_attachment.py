"""A command in a container, by the engine's exec API: a connection that is bytes once it is upgraded.

Source: https://docs.docker.com/reference/api/engine/ (ContainerAttach, Exec)
"""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from trainyard_agent.runtimes.base import EngineUnavailable
from trainyard_protocol.wire.attachments import CHUNK, STDERR, STDOUT, Channel, TerminalSize

if TYPE_CHECKING:
    import requests

    from trainyard_agent.engines.docker.client import DockerClient

_HEADER = struct.Struct(">BxxxL")
_STDERR = 2
_UNKNOWN = 255
_INSPECT_S, _PAUSE_S = 10.0, 0.05


class ExecAttachment:
    def __init__(
        self,
        engine: "DockerClient",
        exec_id: str,
        response: "requests.Response",
        end: Callable[[bool], None],
        *,
        on_terminal: bool,
    ) -> None:
        """`response` is the upgraded one, of which the SDK has read the head and maybe more. `end` ends the processes,
        called with whether the command itself still runs."""
        self._engine, self._id, self._end = engine, exec_id, end
        self._on_terminal = on_terminal
        self._response = response
        raw: Any = response.raw
        self._input = raw._fp.fp  # what is buffered after the head comes first
        self._socket: socket.socket = self._input.raw._sock
        self._socket.settimeout(None)
        self._left = 0
        self._channel: Channel = STDOUT

    def read(self) -> tuple[Channel, bytes] | None:
        try:
            if self._on_terminal:
                data = self._input.read1(CHUNK)
                return (STDOUT, data) if data else None
            while not self._left:
                header = self._input.read(_HEADER.size)
                if len(header) < _HEADER.size:
                    return None
                stream, self._left = _HEADER.unpack(header)
                self._channel = STDERR if stream == _STDERR else STDOUT
            data = self._input.read1(min(self._left, CHUNK))
        except (OSError, ValueError):  # the engine ended, or `close` came
            return None
        self._left -= len(data)
        return (self._channel, data) if data else None

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # `read` ends
            self._socket.sendall(data)

    def end_input(self) -> None:
        if self._on_terminal:
            self.write(b"\x04")
            return
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def resize(self, size: TerminalSize) -> None:
        if self._on_terminal:
            with contextlib.suppress(EngineUnavailable):  # it has ended, or keeps its size
                self._engine.resize_exec(self._id, size.rows, size.columns)

    def exit_code(self) -> int:
        deadline = time.monotonic() + _INSPECT_S
        while (state := self._state()).get("Running") and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        code = state.get("ExitCode")
        return _UNKNOWN if code is None else int(code)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        end, self._end = self._end, lambda _: None
        end(bool(self._state().get("Running")))

    def release(self) -> None:
        self._response.close()

    def wait(self) -> None:
        """Wait for the end, whatever it writes."""
        while self.read() is not None:
            pass
        self.close()
        self.release()

    def _state(self) -> Mapping[str, Any]:
        try:
            return self._engine.inspect_exec(self._id)
        except EngineUnavailable:
            return {}
