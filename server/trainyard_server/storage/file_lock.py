"""The lock that the writers of one job's log take, whichever process they are in."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK = "lock"

_NOTE = 64  # bytes: a stream's file name fits
_LONGEST_PAUSE_S = 0.05


class LogBusy(TimeoutError):
    """Another writer has held a job's log for too long. It may be tried again."""


class Held:
    """The lock, held. Its file says what the holder is writing, so that the next one knows what a writer that was
    killed left half-done."""

    def __init__(self, file: int) -> None:
        self._file = file

    @property
    def unfinished(self) -> str:
        """The file that was being written when its writer was killed; "": none."""
        return os.pread(self._file, _NOTE, 0).decode("ascii", "replace").strip(" \0")

    def begin(self, filename: str) -> None:
        os.pwrite(self._file, filename.encode("ascii").ljust(_NOTE), 0)

    def finish(self) -> None:
        os.pwrite(self._file, b" " * _NOTE, 0)


@contextmanager
def held(directory: Path, wait_s: float) -> Iterator[Held]:
    """Raises LogBusy after `wait_s` seconds, and OSError where the directory cannot be written."""
    file = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        deadline, pause = time.monotonic() + wait_s, 0.001
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise LogBusy(
                        f"{directory} has been written by another process for {wait_s:g} s"
                    ) from None
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        yield Held(file)
    finally:
        os.close(file)
