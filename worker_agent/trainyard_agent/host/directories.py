"""Directories by descriptor: created and opened step by step, never through a link.

A program that may write to a directory can put a link in the place of an entry between two looks at its path. A
descriptor stays the directory that it was.
"""

import errno
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_GONE = os.strerror(errno.ENOENT)
_HOW = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class LinkInPath(OSError):
    """A part of a path is a symbolic link, which `strerror` names."""


@contextmanager
def open_below(root: Path, steps: Sequence[tuple[str, int]]) -> Iterator[list[int]]:
    """Descriptors of `root`, in whose path links are followed, and of a directory for each step, each within the one
    before. A step is its name, and its mode if it has to be created. Raises OSError."""
    root.mkdir(0o711, parents=True, exist_ok=True)
    fds = [os.open(root.resolve(), _HOW)]
    try:
        for name, mode in steps:
            with suppress(FileExistsError):  # opened below, if it is a directory
                os.mkdir(name, mode, dir_fd=fds[-1])
            fds.append(_open(name, fds[-1]))
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def give(fd: int, user: int, group: int, former: int) -> None:
    """Give a directory, and all in it that belongs to the user `former`, to another user. Links are not followed, and
    setuid bits are lost; what others remove meanwhile is left out. Raises OSError."""
    command = ["chown", "-R", "-h", "-P", f"--from={former}", f"{user}:{group}", "--", f"/proc/self/fd/{fd}/."]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, pass_fds=[fd], env=environment
    )
    problems = [line for line in done.stderr.splitlines() if not line.endswith(_GONE)]
    if done.returncode and (problems or not done.stderr):
        raise OSError(0, (problems or ["chown fails"])[0])


def _open(name: str, parent: int) -> int:
    try:
        return os.open(name, _HOW, dir_fd=parent)
    except NotADirectoryError as error:
        try:
            target = os.readlink(name, dir_fd=parent)
        except OSError:  # no link
            raise error from None
        raise LinkInPath(0, f"{name} is a link to {target}") from error
