"""The contract of what is attached to a replica."""

from typing import Protocol

from trainyard_protocol.wire.attachments import Channel, TerminalSize


class NotAttachable(Exception):
    """Nothing can be attached. `message` is one sentence for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Attachment(Protocol):
    """A command in a replica, or a connection to a port of it. One thread reads, another one writes; both wait while
    the other side is slower."""

    def read(self) -> tuple[Channel, bytes] | None:
        """The next output, on STDOUT for a terminal or a port; None once there is no more. On STDERR, of a port, is why
        there is no connection."""
        ...

    def write(self, data: bytes) -> None:
        """Write input. What comes after the end is dropped."""
        ...

    def end_input(self) -> None: ...

    def resize(self, size: TerminalSize) -> None:
        """Change the size of the terminal. Without one: nothing."""
        ...

    def exit_code(self) -> int:
        """The shell's exit code of the command, 128 + n for signal n; of a port 0, unless it could not be connected.
        Called after the end of the output."""
        ...

    def close(self) -> None:
        """End the command with SIGHUP, and after a while SIGKILL, or the connection. Twice: nothing."""
        ...

    def release(self) -> None:
        """Release what is held, after `close`, once no other thread reads or writes."""
        ...
