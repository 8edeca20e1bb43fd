"""Backups by schedule: made when the newest is old enough, the last N kept, failures shown by the health check."""

import errno
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from trainyard_protocol.errors import Unavailable
from trainyard_protocol.net.private_files import create_private
from trainyard_protocol.views.health import Check, CheckStatus
from trainyard_server.context import Backend
from trainyard_server.domain.durations import duration
from trainyard_server.services.backups.backups import Backups
from trainyard_server.storage.failures import failure_reason
from trainyard_server.storage.files import sync

_NAME = re.compile(r"trainyard-(\d{8}T\d{6}Z)\.tar\.gz")
_TIME = "%Y%m%dT%H%M%SZ"
_DRAFT = ".trainyard-backup.part"
_RETRY = timedelta(minutes=10)
_LATE = 1.5
"""Intervals after which a missing backup is a problem."""

_CHECKED = 1 << 26
"""Bytes from one look at the disk to the next."""

logger = logging.getLogger(__name__)


class Interrupted(Exception):
    """The server ends while a backup is being written."""


class BackupSchedule:
    """Call `step` again and again in the process that ticks."""

    def __init__(self, backend: Backend, backups: Backups) -> None:
        self._backend = backend
        self._backups = backups
        self._options = backend.settings.backups
        self._began = backend.clock()
        self._failed_at: datetime | None = None
        self._reason = ""

    @property
    def is_on(self) -> bool:
        return self._options.every_s is not None

    def step(self, is_closing: Callable[[], bool] = lambda: False) -> Path | None:
        """Make a backup if one is due, and remove the oldest beyond those to keep. Returns its path. Raises what has
        failed; it is tried again ten minutes later. Raises Interrupted, also where `is_closing` becomes true."""
        directory, now = self._options.directory, self._backend.clock()
        if self._options.every_s is None or directory is None:
            return None
        if self._failed_at is not None and now - self._failed_at < _RETRY:
            return None
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            existing = _existing(directory)
            if existing and now - existing[-1][0] < timedelta(seconds=self._options.every_s):
                return None
            path = self._write(directory, is_closing)
            for _, old in _existing(directory)[: -self._options.keep]:
                old.unlink()
        except Interrupted:
            raise
        except OSError as error:
            self._failed_at, self._reason = now, f"the last try has failed: {error.strerror or error}"
            raise Unavailable(f"{error.filename or directory}: {error.strerror or error}.") from error
        except Exception as error:
            self._failed_at, self._reason = now, f"the last try has failed: {failure_reason(error) or 'see the log'}"
            raise
        self._failed_at, self._reason = None, ""
        logger.info("Made the backup %s", path)
        return path

    def check(self) -> Check:
        """The health of the schedule: whether the newest backup is as old as it may be."""
        every_s, directory, now = self._options.every_s or 0.0, self._options.directory, self._backend.clock()
        try:
            existing = _existing(directory) if directory is not None else []
        except FileNotFoundError:
            existing = []
        because = f" ({self._reason})" if self._reason else ""
        newest = existing[-1][0] if existing else None
        late = timedelta(seconds=_LATE * every_s)
        if newest is None:
            message = f"there is no backup yet{because}"
            is_late = bool(because) or now - self._began > late
        else:
            message = f"the newest backup is {duration((now - newest).total_seconds())} old{because}"
            is_late = bool(because) or now - newest > late
        advice = "The server's log has the reason: `trainyard backup FILE` makes one by hand." if is_late else ""
        status = CheckStatus.DEGRADED if is_late else CheckStatus.OK
        return Check(status=status, message=message, advice=advice)

    def _write(self, directory: Path, is_closing: Callable[[], bool]) -> Path:
        """Write a backup under a name of its own, and give it its name once it is on the disk."""
        draft = directory / _DRAFT
        draft.unlink(missing_ok=True)
        with self._backups.open() as archive:
            path = directory / f"trainyard-{archive.time.astimezone(UTC):{_TIME}}.tar.gz"
            try:
                with create_private(draft) as file:
                    self._fill(file.write, directory, archive.blocks, is_closing)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
        sync(directory)
        return path

    def _fill(
        self, write: Callable[[bytes], object], directory: Path, blocks: Iterator[bytes], is_closing: Callable[[], bool]
    ) -> None:
        """Write the blocks, while the disk has room. Raises OSError, Interrupted."""
        unchecked = _CHECKED
        for block in blocks:
            if is_closing():
                raise Interrupted
            unchecked += len(block)
            if unchecked > _CHECKED:
                unchecked = 0
                if shutil.disk_usage(directory).free < self._backend.settings.disk_reserve:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(block)


def _existing(directory: Path) -> list[tuple[datetime, Path]]:
    """The backups of the schedule with their times, the oldest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in directory.iterdir())
    return sorted((datetime.strptime(m[1], _TIME).replace(tzinfo=UTC), path) for m, path in matches if m is not None)
