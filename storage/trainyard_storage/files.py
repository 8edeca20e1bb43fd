"""Bodies and contents as files: drafts, which become objects, and their checksums."""

import base64
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

BLOCK = 1 << 20
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_IN_MEMORY = 1 << 18
_RESERVE = 1 << 28
_CHECKED = 1 << 20  # bytes from one look at the disk to the next


def room(directory: Path) -> int:
    """The bytes that uploads may still take of the disk with the directory."""
    return max(0, shutil.disk_usage(directory).free - _RESERVE)


def check_room(directory: Path) -> None:
    """Raises OSError where uploads may take no more of the disk."""
    if not room(directory):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _crc32c() -> Any:
    return google_crc32c.Checksum()  # type: ignore[no-untyped-call]


class Draft:
    """Bytes that are being received: in memory as long as they are few, then in a file of `directory`.

    It has their checksums as Google Cloud Storage writes them.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._memory = bytearray()
        self._file: BinaryIO | None = None
        self.path: Path | None = None
        self._is_adopted = False
        self.size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._crc32c = _crc32c()

    @property
    def md5(self) -> str:
        return base64.b64encode(self._md5.digest()).decode()

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self._crc32c.digest()).decode()

    def write(self, data: bytes) -> None:
        """Raises OSError, also where the disk fills while others write to it."""
        before, self.size = self.size, self.size + len(data)
        self._md5.update(data)
        self._crc32c.update(bytes(data))
        if self._file is None and self.size <= _IN_MEMORY:
            self._memory += data
            return
        if before // _CHECKED != self.size // _CHECKED:
            check_room(self._directory)
        self._opened().write(data)

    def read(self, start: int = 0, length: int = -1) -> bytes:
        """A part of what was written; all of it by default, so only for small bodies."""
        end = self.size if length < 0 else min(self.size, start + length)
        if self._file is None:
            return bytes(self._memory[start:end])
        self._file.flush()
        return os.pread(self._file.fileno(), max(0, end - start), start)

    def blocks(self, start: int, end: int) -> Iterator[bytes]:
        while start < end:
            part = self.read(start, min(BLOCK, end - start))
            yield part
            start += len(part)

    def save(self) -> Path:
        """The file with all bytes, on the disk. Raises OSError, also where uploads may take no more of it."""
        if not self._is_adopted:
            check_room(self._directory)
        file = self._opened()
        file.flush()
        os.fsync(file.fileno())
        file.close()
        assert self.path is not None
        return self.path

    def adopt(self, path: Path) -> None:
        """Be a file that is there; it stays when this closes."""
        self.path, self._is_adopted = path, True
        self._file = path.open("rb+")
        while block := self._file.read(BLOCK):
            self.size += len(block)
            self._md5.update(block)
            self._crc32c.update(block)

    def close(self) -> None:
        """Remove the file, unless it was moved away."""
        if self._file is not None:
            self._file.close()
        if self.path is not None and not self._is_adopted:
            self.path.unlink(missing_ok=True)
        self._memory.clear()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self.path = self._directory / uuid.uuid4().hex
            self._file = self.path.open("xb+")
            self._file.write(self._memory)
            self._memory.clear()
        return self._file


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
