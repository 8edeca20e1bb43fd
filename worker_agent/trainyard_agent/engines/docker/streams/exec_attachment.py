"""A command in a container, by the engine's exec API: a connection that is bytes once it is upgraded.

Source: https://docs.docker.com/reference/api/engine/ (ContainerAttach, Exec)
"""

import contextlib
import logging
import os
import signal
import socket
import struct
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trainyard_agent.host import procfs
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.runtimes.base import EngineUnavailable
from trainyard_protocol.wire.attachments import CHUNK, STDERR, STDOUT, Channel, TerminalSize

if TYPE_CHECKING:
    import requests

    from trainyard_agent.engines.docker.client import DockerClient

_HEADER = struct.Struct(">BxxxL")
_STDERR = 2
_UNKNOWN = 255
_HANG_UP_S, _INSPECT_S, _PAUSE_S = 5.0, 10.0, 0.05

_log = logging.getLogger(__name__)


class ExecAttachment:
    def __init__(
        self, engine: "DockerClient", container: str, exec_id: str, response: "requests.Response", *, on_terminal: bool
    ) -> None:
        """`response` is the upgraded one, of which the SDK has read the head and maybe more."""
        self._engine, self._container, self._id = engine, container, exec_id
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
        """The engine itself lets a command go on whose caller is gone."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._state().get("Running"):
            self._signal(signal.SIGHUP)
            if not wait_until(lambda: not self._state().get("Running"), deadline_in(_HANG_UP_S), _PAUSE_S):
                self._signal(signal.SIGKILL)

    def release(self) -> None:
        self._response.close()

    def _signal(self, number: signal.Signals) -> None:
        """Signal the command, the leader of a session of its own, from here or from inside of the container."""
        pid = int(self._state().get("Pid") or 0)
        if not pid or not procfs.is_in_container(pid, self._container):
            _log.warning("a command in container %s cannot be ended: its processes are not seen", self._container[:12])
            return
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return
        except PermissionError:
            inside = procfs.pid_inside(pid)
            kill = ("sh", "-c", f"kill -{number.value} -{inside} || kill -{number.value} {inside}")
            self._engine.start_exec(self._container, kill, None).release()

    def _state(self) -> Mapping[str, Any]:
        try:
            return self._engine.inspect_exec(self._id)
        except EngineUnavailable:
            return {}
