"""Content of a file that a user names, of a limited size."""

import sys
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument


def read(path: Path | None, most: int, question: str = "") -> bytes:
    """The content of a file; None: of standard input. `most` is the limit in bytes, a whole number of MiB; `question`
    ends the error about a larger one. Raises InvalidArgument for that, and for one that cannot be read."""
    name = "<stdin>" if path is None else str(path)
    try:
        content = beginning(path, most + 1)
    except OSError as error:
        raise InvalidArgument(f"{name}: cannot be read: {error.strerror}.") from error
    if len(content) > most:
        raise InvalidArgument(f"{name}: is larger than {most // 2**20} MiB.{question}")
    return content


def beginning(path: Path | None, size: int) -> bytes:
    """The first bytes of a file, at most `size`; None: of standard input. Raises OSError."""
    if path is None:
        return sys.stdin.buffer.read(size)
    with path.open("rb") as file:
        return file.read(size)
