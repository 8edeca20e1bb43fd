"""A small file system of a test's own, which can be filled to the last byte and made read-only."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Not a byte more goes onto it."""
        with suppress(OSError), (self.path / "ballast").open("ab", buffering=0) as ballast:
            for size in (2**16, 2**10, 1):
                with suppress(OSError):
                    while True:
                        ballast.write(b"x" * size)

    def free(self) -> None:
        (self.path / "ballast").unlink(missing_ok=True)

    def forbid_files(self) -> None:
        """Not a file or directory more: its inodes are used up, though bytes are free."""
        status = os.statvfs(self.path)
        self._remount(f"nr_inodes={status.f_files - status.f_ffree}")

    def allow_files(self) -> None:
        self._remount("nr_inodes=1000")

    def forbid_writes(self) -> None:
        """Raises CalledProcessError as long as a file on it is open for writing."""
        self._remount("ro")

    def allow_writes(self) -> None:
        self._remount("rw")

    def _remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.path], check=True, capture_output=True)


@contextmanager
def small_disk(path: Path, megabytes: int = 16) -> Iterator[SmallDisk]:
    """Mounted at `path`. Skips the test where this user may not mount."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0700", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip(f"needs a file system of its own: {os.strerror(errno.EPERM)}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True, capture_output=True)
