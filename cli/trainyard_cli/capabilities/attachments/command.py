"""A command in a replica: its input and output are those of this process."""

import contextlib
import os
import signal
import sys
import termios
import threading
import tty
from collections.abc import Iterator
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from trainyard_cli.output.text.safe import echo
from trainyard_protocol.wire.attachments import (
    CHUNK,
    REFUSED,
    STDERR,
    STDIN,
    AttachRequest,
    Control,
    Terminal,
    TerminalSize,
)

if TYPE_CHECKING:
    from trainyard_cli.client import Client

LOST = 255
"""The exit code where the connection ends before the command, as that of ssh."""

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_LINE_ENDS = b"\r\n"
_ESCAPE, _DISCONNECT = ord("~"), ord(".")


class EscapeSequence:
    """Finds `~.` at the beginning of a line in what is typed, as ssh does: it ends a connection that hangs."""

    def __init__(self) -> None:
        self._is_at_line = True
        self._has_escape = False

    def found(self, data: bytes) -> bool:
        for byte in data:
            if self._has_escape and byte == _DISCONNECT:
                return True
            self._has_escape = self._is_at_line and byte == _ESCAPE
            self._is_at_line = byte in _LINE_ENDS
        return False


def execute(client: "Client", job: str, task: str, command: tuple[str, ...], *, terminal: bool) -> int:
    """Run a command in a replica until it ends. Returns its exit code, LOST where the connection ends before."""
    size = own_terminal() if terminal else None
    receipt = client.attach(job, AttachRequest(task=task, command=command, terminal=size))
    left = threading.Event()
    try:
        in_raw_mode = raw_terminal() if terminal else contextlib.nullcontext()
        with contextlib.closing(client.open_stream(receipt.id, 0)) as connection, in_raw_mode:
            if terminal:
                _follow_size(connection)
            threading.Thread(target=_send_input, args=(connection, left if terminal else None), daemon=True).start()
            code = _copy_output(connection)
    except BaseException:  # Ctrl-C, and stdout that nobody reads
        client.detach(receipt.id)
        raise
    if code is not None:
        return code
    if left.is_set():
        client.detach(receipt.id)
        echo("Disconnected.", err=True)
    else:
        echo(f"ERROR: {_why(connection, receipt.task)}", err=True)
    return LOST


def own_terminal() -> Terminal:
    """The size and kind of the terminal of this process."""
    columns, rows = os.get_terminal_size(_STDIN)
    kind = os.environ.get("TERM", "") or "dumb"
    return Terminal(rows=min(max(rows, 1), 1000), columns=min(max(columns, 1), 1000), kind=kind)


@contextlib.contextmanager
def raw_terminal() -> Iterator[None]:
    """Pass each key on as it is typed, Ctrl-C among them."""
    before = termios.tcgetattr(_STDIN)
    tty.setraw(_STDIN, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(_STDIN, termios.TCSADRAIN, before)


def _copy_output(connection: ClientConnection) -> int | None:
    """Write what comes. Returns the exit code; None where the connection ends before."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            message = connection.recv()
            if isinstance(message, bytes):
                _write(_STDERR if message[0] == STDERR else _STDOUT, message[1:])
            elif (code := Control.model_validate_json(message).exit_code) is not None:
                return code
    return None


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _send_input(connection: ClientConnection, left: threading.Event | None) -> None:
    """Send what is typed or piped. `left` is set, of a terminal, where the user disconnects."""
    escape = EscapeSequence()
    with contextlib.suppress(ConnectionClosed, OSError):  # it has ended, or stdin is closed
        while data := os.read(_STDIN, CHUNK):
            if left is not None and escape.found(data):
                left.set()
                connection.close()
                return
            connection.send(bytes((STDIN,)) + data)
        connection.send(Control(eof=True).text())


def _follow_size(connection: ClientConnection) -> None:
    """Tell the other side each new size of the terminal. By a thread: a handler must not wait for a lock."""
    changes: SimpleQueue[None] = SimpleQueue()

    def changed(_number: int, _frame: FrameType | None) -> None:
        changes.put(None)

    def send() -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                changes.get()
                size = own_terminal()
                connection.send(Control(resize=TerminalSize(rows=size.rows, columns=size.columns)).text())

    signal.signal(signal.SIGWINCH, changed)
    threading.Thread(target=send, daemon=True).start()


def why_closed(connection: ClientConnection) -> str:
    """The reason of the other side, in words."""
    return connection.close_reason or "The connection to the server was lost."


def _why(connection: ClientConnection, task: str) -> str:
    words = why_closed(connection)
    if connection.close_code == REFUSED and connection.close_reason:
        return words
    return f"{words} Whatever ran in {task} was ended, or will be."


def is_terminal() -> bool:
    """Whether input and output of this process are a terminal."""
    return sys.stdin is not None and os.isatty(_STDIN) and os.isatty(_STDOUT)
