"""Files that several server processes write: paths of jobs, positioned writes, and a lock for each directory."""

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument

LOCK = "lock"
"""The file of a directory's lock."""

_LONGEST_PAUSE_S = 0.05


class LockTimeout(TimeoutError):
    """Another writer has held the lock of a directory for too long. A retry may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ETIMEDOUT, message)


def job_directory(root: Path, project: str, job_id: str) -> Path:
    """`root/project/job_id`. Raises InvalidArgument for a name that is no name of a directory."""
    for name in (project, job_id):
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise InvalidArgument(f"{name!r} cannot name a project or a job.")
    return root / project / job_id


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def write_at(path: Path, offset: int, data: bytes | bytearray) -> None:
    """Write all of `data` at `offset` of a file, which is created if it does not exist. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            done = os.pwrite(file, rest, offset)
            offset += done
            rest = rest[done:]
    finally:
        os.close(file)


def truncate(path: Path, size: int) -> None:
    """Cut a file down to `size` bytes. A smaller or missing file stays as it is."""
    if size_of(path) > size:
        os.truncate(path, size)


def sync(path: Path) -> None:
    """Flush a file or a directory to the disk (fsync)."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def remove_directory(directory: Path, wait_s: float) -> None:
    """Remove a directory under its lock; does nothing if there is none. Raises LockTimeout, OSError."""
    with suppress(FileNotFoundError), locked(directory, wait_s):
        shutil.rmtree(directory)


@contextmanager
def locked(directory: Path, wait_s: float) -> Iterator[None]:
    """Hold the exclusive lock (flock) of a directory. Raises LockTimeout after `wait_s` seconds, or OSError."""
    file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        deadline, pause = time.monotonic() + wait_s, 0.001
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LockTimeout(f"{directory} is locked by another process for {wait_s:g} s") from None
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        yield
    finally:
        os.close(file)
