"""Audit file: each row of the audit as a line of JSON, for systems that collect logs."""

import errno
import os
from pathlib import Path

from trainyard_protocol.answers.audit import AuditEntry
from trainyard_protocol.errors import InvalidArgument

# A pipe that nobody reads is an error, and no request waits for it.
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK


class AuditFile:
    """The file is opened for each append, so that it may be renamed or removed at any time. It is made readable by the
    server's user alone; one that is there keeps its mode. Several servers may append to one file."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidArgument if the file cannot be written."""
        self._path = path
        self._is_torn = False
        try:
            self._write(b"")
        except OSError as error:
            raise InvalidArgument(f"--audit-file {path} cannot be written: {error.strerror}.") from error

    def append(self, entry: AuditEntry) -> None:
        """Raises OSError. A line that was written in part, as on a full disk, ends before the next one."""
        line = f"{entry.model_dump_json()}\n".encode()
        self._write(b"\n" + line if self._is_torn else line)

    def _write(self, data: bytes) -> None:
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            written = os.write(descriptor, data) if data else 0
            self._is_torn = 0 < written < len(data)
            if self._is_torn:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)
