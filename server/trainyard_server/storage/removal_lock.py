"""Lock between removals and backups, for all servers on a data directory.

Whoever removes files of jobs or packages shares it. A backup holds it alone from the snapshot of the database until it
has a link to each file: nothing that the snapshot names is gone by then.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainyard_server.storage.files import LockTimeout

_FILE = "removals.lock"
_PAUSE_S = 0.01
REMOVAL_WAIT_S = 10.0
_BACKUP_WAIT_S = 60.0


class RemovalLock:
    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / _FILE

    @contextmanager
    def removing(self, wait_s: float = REMOVAL_WAIT_S) -> Iterator[None]:
        """Files may be removed in the block. Raises LockTimeout while a backup begins."""
        with self._held(fcntl.LOCK_SH, wait_s, "A backup is beginning, so nothing can be removed now."):
            yield

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """No file is removed in the block. Raises LockTimeout."""
        with self._held(fcntl.LOCK_EX, _BACKUP_WAIT_S, "Jobs are being removed, so a backup cannot begin now."):
            yield

    @contextmanager
    def _held(self, how: int, wait_s: float, message: str) -> Iterator[None]:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + wait_s
        try:
            while True:
                try:
                    fcntl.flock(file, how | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise LockTimeout(message) from None
                    time.sleep(_PAUSE_S)
            yield
        finally:
            os.close(file)
