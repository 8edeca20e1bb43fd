"""Transient failures of the database and the disk: their reason in words, and a log that reports each once."""

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping

from sqlalchemy import exc

DatabaseError = exc.SQLAlchemyError
"""Any error of the database or its connection. The packages above `storage` use only this name."""

UnstorableValue = exc.DataError
"""A value that the database cannot store, such as a NUL character in PostgreSQL."""

_DISK_FULL = "the disk of the data directory is full"
_UNWRITABLE = "the data directory cannot be written"
_FILES: Mapping[int, str] = {
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
    errno.EROFS: _UNWRITABLE,
    errno.EACCES: _UNWRITABLE,
    errno.EPERM: _UNWRITABLE,
    errno.EIO: "the disk of the data directory fails",
    errno.EMFILE: "too many files are open",
    errno.ENFILE: "too many files are open",
}

# Parts of the messages of SQLite and PostgreSQL that are not caused by the statement, and their meaning.
_DATABASE = (
    ("is locked", "the database is locked by another process"),
    ("lock timeout", "the database is locked by another process"),
    ("disk is full", "the disk of the database is full"),
    ("no space left", "the disk of the database is full"),
    ("readonly", "the database is read-only"),
    ("read-only", "the database is read-only"),
    ("disk i/o error", "the disk of the database fails"),
    ("malformed", "the database is damaged"),
    ("not a database", "the database is damaged"),
    ("unable to open", "the file of the database cannot be opened"),
    ("statement timeout", "the database takes too long"),
    ("deadlock", "another transaction used the database at the same time"),
)
_UNREACHABLE = "the database does not answer"
_QUIET_S = 60.0  # a failure that returns after this time is logged again


def failure_reason(error: BaseException) -> str | None:
    """Reason why database or disk cannot be used: half a sentence without path, host or secret. None for other
    errors."""
    if isinstance(error, OSError):
        return _FILES.get(error.errno or 0)
    return _of_database(error)


def is_database_failure(error: BaseException) -> bool:
    """Whether the database cannot be used, so that other operations on it would fail too."""
    return _of_database(error) is not None


def failure_detail(error: BaseException) -> str:
    """The first line of the original error message."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.partition("\n")[0]


def _of_database(error: BaseException) -> str | None:
    if isinstance(error, exc.TimeoutError):
        return "every connection to the database is in use"
    if not isinstance(error, exc.DBAPIError):
        return None
    transient = isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError)
    # SQLite raises the plain class for a damaged file; its other subclasses are our own mistakes.
    if not (transient or type(error) is exc.DatabaseError or error.connection_invalidated):
        return None
    message = str(error.orig).lower()
    return next((meaning for part, meaning in _DATABASE if part in message), _UNREACHABLE)


class FailureLog:
    """Logs a transient failure once, not on every attempt, and logs its recovery once. Errors that are not transient
    are logged every time, with their traceback. Thread-safe."""

    def __init__(self, logger: logging.Logger, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._last_seen: dict[tuple[str, str], float] = {}

    def record(self, operation: str, error: BaseException) -> None:
        """Log the failure. `operation` is the beginning of a sentence: "The scheduler cannot go on"."""
        reason = failure_reason(error)
        if reason is None:
            self._logger.error("%s: %s", operation, error, exc_info=error)
            return
        now = self._stopwatch()
        with self._lock:
            self._last_seen = {key: at for key, at in self._last_seen.items() if now - at <= _QUIET_S}
            is_new = (operation, reason) not in self._last_seen
            self._last_seen[operation, reason] = now
        if is_new:
            self._logger.error("%s: %s (%s).", operation, reason, failure_detail(error))

    def resolved(self, operation: str, message: str) -> None:
        """Log `message` if the operation failed before."""
        with self._lock:
            failed = [key for key in self._last_seen if key[0] == operation]
            for key in failed:
                del self._last_seen[key]
        if failed:
            self._logger.warning("%s", message)
