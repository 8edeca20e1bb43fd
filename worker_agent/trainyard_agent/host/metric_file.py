"""Reads the metric file of a trial, which its program writes and may have made anything of."""

import os
import stat
from pathlib import Path

METRIC_BYTES = 1 << 20
"""A larger file is ignored: cloudml-hypertune writes a hundred lines."""

_HOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def read_metric_file(path: Path) -> bytes:
    """The content of a regular file; b"" if there is none, or something else in its place: a link, one with a second
    name, a pipe, a file that is too large. Its directory is the program's, those above are not. Raises OSError."""
    try:
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        file = os.open(path.name, _HOW, dir_fd=directory)
    except OSError:  # there is none, or it is a link, a socket, or unreadable
        return b""
    finally:
        os.close(directory)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_size > METRIC_BYTES:
            return b""
        return os.pread(file, METRIC_BYTES, 0)
    finally:
        os.close(file)
