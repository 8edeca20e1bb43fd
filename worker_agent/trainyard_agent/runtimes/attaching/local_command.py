"""A command that the agent starts on its machine, with pipes or on a terminal, and a connection that it opens there."""

import contextlib
import fcntl
import logging
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trainyard_agent.host import process_tags
from trainyard_agent.runtimes.attaching import guard
from trainyard_agent.runtimes.attaching.attachment import NotAttachable
from trainyard_protocol.wire.attachments import CHUNK, STDERR, STDOUT, Channel, Terminal, TerminalSize

_ENDS_S = guard.HANG_UP_S + 5.0
_KILL_S = 1.0
_CONNECT_S = 10.0
_log = logging.getLogger(__name__)


class LocalCommand:
    """A command under a guard (`guard.py`), which ends it, and all that it has started, with this object or with the
    agent. The output ends with the command itself: what it leaves in the background may hold its terminal open."""

    def __init__(
        self,
        command: Sequence[str],
        terminal: Terminal | None,
        state_dir: Path | None,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
    ) -> None:
        """`state_dir` is the one of the agent that finds what is left (`end_attachments`); None: nobody looks for it.
        `environment`: None is the agent's own, plus TERM on a terminal. `user` owns the terminal. Raises OSError."""
        self._id = process_tags.new_attachment()
        variables = {
            **(os.environ if environment is None else environment),
            **({} if terminal is None else {"TERM": terminal.kind}),
            **process_tags.attachment_tag(self._id, state_dir),
        }
        self._terminal = -1
        self._guard, other = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with other:
            words = [str(other.fileno()), str(int(terminal is not None)), *command]
            guarded = [sys.executable, "-I", "-S", guard.__file__, *words]
            try:
                if terminal is None:
                    self._start_with_pipes(guarded, other, variables)
                else:
                    self._start_on_terminal(guarded, other, variables, terminal, user)
            except OSError:
                self._guard.close()
                raise
        os.set_blocking(self._input, False)
        first = self._guard.recv(guard.MESSAGE_BYTES)  # a Ctrl-C that is written before this would reach nobody
        self._exit = None if first == guard.READY else first

    def _start_with_pipes(self, words: Sequence[str], other: socket.socket, variables: Mapping[str, str]) -> None:
        self._process = _started(words, (subprocess.PIPE,) * 3, other, variables)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._input = os.dup(self._process.stdin.fileno())
        self._process.stdin.close()
        self._outputs: dict[int, Channel] = {
            self._process.stdout.fileno(): STDOUT,
            self._process.stderr.fileno(): STDERR,
        }

    def _start_on_terminal(
        self,
        words: Sequence[str],
        other: socket.socket,
        variables: Mapping[str, str],
        terminal: Terminal,
        user: int | None,
    ) -> None:
        self._terminal, inner = pty.openpty()
        self.resize(terminal)
        try:
            if user is not None:
                os.fchown(inner, user, -1)
            self._process = _started(words, (inner,) * 3, other, variables)
        except OSError:
            os.close(self._terminal)
            raise
        finally:
            os.close(inner)
        self._input = os.dup(self._terminal)
        self._outputs = {self._terminal: STDOUT}

    def read(self) -> tuple[Channel, bytes] | None:
        while True:
            poll = select.poll()
            for fd in (*self._outputs, self._guard.fileno()):
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            for fd in [fd for fd in self._outputs if fd in ready]:
                if data := _read(fd):
                    return self._outputs[fd], data
                del self._outputs[fd]
                ready.discard(fd)
            if ready == {self._guard.fileno()}:
                return None

    def write(self, data: bytes) -> None:
        poll = select.poll()
        poll.register(self._input, select.POLLOUT)
        poll.register(self._guard, select.POLLIN)
        while data and self._input >= 0:
            ready = {fd for fd, _ in poll.poll()}
            if self._guard.fileno() in ready:
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
        if self._exit is None:
            self._exit = self._guard.recv(guard.MESSAGE_BYTES)
        return int(self._exit) if self._exit else guard.SIGNALLED + signal.SIGKILL

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it was closed before
            self._guard.shutdown(socket.SHUT_WR)
        self._process.send_signal(signal.SIGCONT)  # a program may have suspended it
        try:
            self._process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:
            end_processes(lambda: process_tags.attached(self._id), f"attachment {self._id}")

    def release(self) -> None:
        for fd in {self._input, self._terminal} - {-1}:
            os.close(fd)
        self._guard.close()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def end_attachments(state_dir: Path) -> None:
    """End what is left of the commands of an agent that was killed, and of their guards."""
    end_processes(lambda: process_tags.attached_below(state_dir), "attachments of a former agent")


def end_processes(find: Callable[[], list[int]], owner: str) -> None:
    """SIGKILL what is found until it finds none. What cannot be killed is warned of."""
    try:
        process_tags.kill_until_gone(find, owner, _KILL_S)
    except (OSError, process_tags.StillAlive) as error:
        _log.warning("%s", error)


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


def _started(
    words: Sequence[str], streams: tuple[int, int, int], socket_: socket.socket, variables: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """The guard, with these streams and the socket."""
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        words,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=variables,
        pass_fds=[socket_.fileno()],
        start_new_session=True,
    )


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, CHUNK)
    except OSError:  # a terminal that nobody holds open
        return b""
