"""A command that the agent starts on its machine, with pipes or on a terminal, and a connection that it opens there."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence

from trainyard_agent.runtimes.attaching import on_terminal
from trainyard_agent.runtimes.attaching.attachment import NotAttachable
from trainyard_protocol.wire.attachments import CHUNK, STDERR, STDOUT, Channel, Terminal, TerminalSize

_HANG_UP_S = 5.0
_CONNECT_S = 10.0
_SIGNALLED = 128


class LocalCommand:
    """The output ends with the command itself: what it leaves in the background may hold its terminal open."""

    def __init__(
        self,
        command: Sequence[str],
        terminal: Terminal | None,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        user: int | None = None,
    ) -> None:
        """`environment`: None is the agent's own, plus TERM on a terminal. `user` owns the terminal. Raises OSError."""
        environment = dict(os.environ if environment is None else environment)
        self._terminal = -1
        if terminal is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=directory, start_new_session=True
            )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            assert self._process.stderr is not None
            self._input = os.dup(self._process.stdin.fileno())
            self._process.stdin.close()
            self._outputs: dict[int, Channel] = {
                self._process.stdout.fileno(): STDOUT,
                self._process.stderr.fileno(): STDERR,
            }
        else:
            self._terminal, inner = pty.openpty()
            self.resize(terminal)
            if user is not None:
                os.fchown(inner, user, -1)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", on_terminal.__file__, *command],
                    stdin=inner,
                    stdout=inner,
                    stderr=inner,
                    env=environment | {"TERM": terminal.kind},
                    cwd=directory,
                    start_new_session=True,
                )
            except OSError:
                os.close(self._terminal)
                raise
            finally:
                os.close(inner)
            self._input = os.dup(self._terminal)
            self._outputs = {self._terminal: STDOUT}
        os.set_blocking(self._input, False)
        self._end = os.pidfd_open(self._process.pid)

    def read(self) -> tuple[Channel, bytes] | None:
        while True:
            poll = select.poll()
            for fd in (*self._outputs, self._end):
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            for fd in [fd for fd in self._outputs if fd in ready]:
                if data := _read(fd):
                    return self._outputs[fd], data
                del self._outputs[fd]
                ready.discard(fd)
            if ready == {self._end}:
                return None

    def write(self, data: bytes) -> None:
        poll = select.poll()
        poll.register(self._input, select.POLLOUT)
        poll.register(self._end, select.POLLIN)
        while data and self._input >= 0:
            ready = {fd for fd, _ in poll.poll()}
            if self._end in ready:
                return
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                continue
            except OSError:  # its input is closed
                return

    def end_input(self) -> None:
        if self._terminal >= 0:
            self.write(b"\x04")  # as Ctrl-D
            return
        end, self._input = self._input, -1
        if end >= 0:
            os.close(end)

    def resize(self, size: TerminalSize) -> None:
        if self._terminal >= 0:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    def exit_code(self) -> int:
        code = self._process.wait()
        return code if code >= 0 else _SIGNALLED - code

    def close(self) -> None:
        self._signal(signal.SIGHUP)
        try:
            self._process.wait(_HANG_UP_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def release(self) -> None:
        for fd in {self._input, self._terminal, self._end} - {-1}:
            os.close(fd)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


class LocalConnection:
    """A connection to a port of this machine's loopback."""

    def __init__(self, port: int) -> None:
        """Raises NotAttachable."""
        problem = ""
        for host in ("127.0.0.1", "::1"):
            try:
                self._socket = socket.create_connection((host, port), _CONNECT_S)
            except OSError as error:
                problem = problem or str(error.strerror or error)
            else:
                self._socket.settimeout(None)
                return
        raise NotAttachable(f"Nothing listens at port {port} ({problem}).")

    def read(self) -> tuple[Channel, bytes] | None:
        try:
            data = self._socket.recv(CHUNK)
        except OSError:  # reset, or closed here
            return None
        return (STDOUT, data) if data else None

    def write(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # `read` ends
            self._socket.sendall(data)

    def end_input(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def resize(self, size: TerminalSize) -> None:
        pass

    def exit_code(self) -> int:
        return 0

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        self._socket.close()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, CHUNK)
    except OSError:  # a terminal that nobody holds open
        return b""
