"""Fork server: a process that has loaded our short programs, and forks for each of their starts.

A supervisor, or the inspection of an archive, then begins within milliseconds, where a Python of its own would take
fifty and as much CPU. What is forked leads a session of its own, has the given files as its descriptors 0, 1, ... and
no others, no environment but LANG, SIGTERM blocked, and a command line that says what it is. The fork server ends with
the process that started it; what it has forked does not.

It imports only the standard library: it is a `python -I -S`.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); from trainyard_agent.runtimes.fork_server import serve; serve()"
_ROOT = str(Path(__file__).parents[2])
_SOCKET = 3
_REQUEST_BYTES, _FILES = 1 << 16, 8
_COMMAND_BYTES = 4096  # of the command line: room for what is shown of a forked process
_ABOVE = 100  # descriptors that are in nobody's way
_MAX_FDS = 1 << 20
_ANSWER_S = 60.0  # it may have to load its programs, on a busy machine


class ForkServerError(OSError):
    """Nothing was started."""


@dataclass(frozen=True, slots=True)
class Forked:
    """A process that was forked. `handle` is a pidfd: it names this process though its pid may be another one's."""

    pid: int
    handle: int

    def kill(self) -> None:
        try:
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        except ProcessLookupError:
            return  # it has ended

    def wait(self) -> None:
        """Wait for its end."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        poll.poll()

    def close(self) -> None:
        os.close(self.handle)


class ForkServer:
    """The one of this process, which is started with the first program. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0

    def start(self, module: str, arguments: Sequence[str | int], files: Sequence[int], umask: int = -1) -> Forked:
        """Start `main(*arguments)` of a module of ours. Raises OSError."""
        request = json.dumps({"module": module, "arguments": list(arguments), "umask": umask}).encode()
        with self._lock:
            connection = self._socket or self._open()
            try:
                socket.send_fds(connection, [request], list(files))
            except ConnectionError:  # it was killed before: this request has not arrived
                self._close()
                connection = self._open()
                socket.send_fds(connection, [request], list(files))
            try:
                answer, handles, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, 1)
            except OSError:
                answer, handles = b"", []
            if not answer:  # nobody knows whether it has forked: it is not asked twice
                self._close()
                raise ForkServerError(0, "the fork server does not answer")
        if not handles:
            raise ForkServerError(0, answer.decode())
        return Forked(int(answer), handles[0])

    def close(self) -> None:
        """End the fork server; the next program starts another one."""
        with self._lock:
            self._close()

    def _open(self) -> socket.socket:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-I", "-S", "-c", _PROGRAM, _ROOT]
        command.append("-" * (_COMMAND_BYTES - sum(map(len, command))))
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                command,
                {"LANG": "C.UTF-8"},
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, nothing, 0),
                    (os.POSIX_SPAWN_DUP2, nothing, 1),
                    (os.POSIX_SPAWN_DUP2, its.fileno(), _SOCKET),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE],
            )
        except OSError:
            ours.close()
            raise
        finally:
            its.close()
            os.close(nothing)
        ours.settimeout(_ANSWER_S)
        self._socket = ours
        return ours

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            os.kill(self._pid, signal.SIGKILL)  # our child, not reaped: the pid is valid
            os.waitpid(self._pid, 0)


SHARED = ForkServer()
atexit.register(SHARED.close)


def serve() -> None:
    """The fork server itself: answer requests until the other side has closed the socket, or was killed before it had
    an answer. What was forked for that one meets its end by itself."""
    os.closerange(_SOCKET + 1, _MAX_FDS)
    connection = socket.socket(fileno=_SOCKET)
    _set_command_line([sys.executable, __file__])
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, _reap)
    with suppress(ConnectionError):
        _answer(connection)


def _answer(connection: socket.socket) -> None:
    while True:
        data, files, _, _ = socket.recv_fds(connection, _REQUEST_BYTES, _FILES)
        if not data:
            return
        request = json.loads(data)
        try:
            program = importlib.import_module(request["module"])
            # Nothing is reaped until its handle is open: the pid could be another one's.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
            gc.freeze()  # what is loaded is shared with what is forked
            pid = os.fork()
            if pid == 0:
                _run(program.main, request, files, program.__file__ or "")
            handle = os.pidfd_open(pid)
        except (ImportError, OSError) as error:
            connection.send(str(error).encode("utf-8", "replace")[:1000] or b"unknown error")
        else:
            socket.send_fds(connection, [str(pid).encode()], [handle])
            os.close(handle)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
            for file in files:
                os.close(file)


def _reap(*_: object) -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _run(main: object, request: dict[str, object], files: list[int], path: str) -> None:
    """Become the program, in the forked child. Never returns."""
    status = 1
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGTERM])
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        above = [fcntl.fcntl(file, fcntl.F_DUPFD, _ABOVE) for file in files]
        for descriptor, file in enumerate(above):
            os.dup2(file, descriptor)
        os.closerange(len(files), _MAX_FDS)
        arguments = request["arguments"]
        umask = request["umask"]
        assert isinstance(arguments, list)
        assert isinstance(umask, int)
        if umask >= 0:
            os.umask(umask)
        _set_command_line([sys.executable, path, *map(str, arguments)])
        assert callable(main)
        main(*arguments)
        sys.stdout.flush()
        status = 0
    except BaseException:  # noqa: BLE001 - a child that returned would be a second fork server
        traceback.print_exc()
    finally:
        os._exit(status)


def _set_command_line(words: list[str]) -> None:
    """Show these words as the command of this process, as far as there is room where its own command is."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end: proc(5) counts from 1, with pid and name
    text = b"\0".join(os.fsencode(word) for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
