"""Failures of the database and the disk: their reason and their remedy in words, and a log that reports each once."""

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import exc

DatabaseError = exc.SQLAlchemyError
"""Any error of the database or its connection. The packages above `storage` use only this name."""

UnstorableValue = exc.DataError
"""A value that the database cannot store, such as a NUL character in PostgreSQL."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of the database or the disk. `reason` is half a sentence, `remedy` a whole one; neither has a path, a
    host or a secret. `is_damage`: it does not pass by itself, whatever is repaired around it."""

    reason: str
    remedy: str
    is_damage: bool = False

    def remedy_of_stopped(self, then: str) -> str:
        """The remedy for a server that does not run, and that someone has to start `then`."""
        words = self.remedy.removesuffix(_THEN).removesuffix(_AUTOMATIC).rstrip()
        return f"{words} {then}".lstrip()


_AUTOMATIC = "The server continues automatically."
_THEN = "The server then continues automatically."
_ROOM = f"Free some space there (`trainyard doctor` shows what uses it). {_THEN}"
_WRITABLE = f"Make it writable again. {_THEN}"
_DISK = (
    "The system's log (`dmesg`) has more about the disk. The server continues automatically once the disk can be read "
    "and written."
)
_OPEN = f"It is missing, or the server's user may not open it: put it back. {_THEN}"
_ANSWER = f"Start the database, or repair the connection to it. {_THEN}"
_DISK_FULL = Failure("the disk of the data directory is full", _ROOM)
_UNWRITABLE = Failure("the data directory cannot be written", _WRITABLE)
_FILES_OPEN = Failure("too many files are open", _AUTOMATIC)
_FILES: Mapping[int, Failure] = {
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
    errno.EROFS: _UNWRITABLE,
    errno.EACCES: _UNWRITABLE,
    errno.EPERM: _UNWRITABLE,
    errno.EIO: Failure("the disk of the data directory fails", _DISK),
    errno.EMFILE: _FILES_OPEN,
    errno.ENFILE: _FILES_OPEN,
    errno.ETIMEDOUT: Failure("another writer holds a file of the data directory for too long", _AUTOMATIC),
}

# Parts of the messages of SQLite and PostgreSQL that are not caused by the statement, and their meaning.
_LOCKED = Failure("the database is locked by another process", f"End the program that holds it. {_THEN}")
_FULL = Failure("the disk of the database is full", _ROOM)
_READ_ONLY = Failure("the database is read-only", _WRITABLE)
RESTORE_DATABASE = (
    "The server cannot repair this: stop it, and restore the database from a backup, or recover what can be "
    "read (docs/how-to/operate.md, A damaged database)."
)
_DAMAGED = Failure("the database is damaged", RESTORE_DATABASE, is_damage=True)
_DATABASE = (
    ("is locked", _LOCKED),
    ("lock timeout", _LOCKED),
    ("disk is full", _FULL),
    ("no space left", _FULL),
    ("readonly", _READ_ONLY),
    ("read-only", _READ_ONLY),
    ("disk i/o error", Failure("the disk of the database fails", _DISK)),
    ("malformed", _DAMAGED),
    ("not a database", _DAMAGED),
    ("invalid page in block", _DAMAGED),
    ("unable to open", Failure("the file of the database cannot be opened", _OPEN)),
    ("statement timeout", Failure("the database takes too long", _AUTOMATIC)),
    ("deadlock", Failure("another transaction used the database at the same time", _AUTOMATIC)),
)
_UNREACHABLE = Failure("the database does not answer", _ANSWER)
_BUSY = Failure("every connection to the database is in use", _AUTOMATIC)
_QUIET_S = 60.0  # a failure that returns after this time is logged again


def failure_of(error: BaseException) -> Failure | None:
    """The failure of database or disk that an error tells of; None for other errors."""
    if isinstance(error, OSError):
        return _FILES.get(error.errno or 0)
    return _of_database(error)


def failure_reason(error: BaseException) -> str | None:
    """Its reason alone."""
    failure = failure_of(error)
    return failure.reason if failure is not None else None


def is_database_failure(error: BaseException) -> bool:
    """Whether the database cannot be used, so that other operations on it would fail too."""
    return _of_database(error) is not None


def failure_detail(error: BaseException) -> str:
    """The first line of the original error message."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.partition("\n")[0]


def _of_database(error: BaseException) -> Failure | None:
    if isinstance(error, exc.TimeoutError):
        return _BUSY
    if not isinstance(error, exc.DBAPIError):
        return None
    transient = isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError)
    # SQLite raises the plain class for a damaged file; its other subclasses are our own mistakes.
    if not (transient or type(error) is exc.DatabaseError or error.connection_invalidated):
        return None
    message = str(error.orig).lower()
    return next((meaning for part, meaning in _DATABASE if part in message), _UNREACHABLE)


class FailureLog:
    """Logs a failure of database or disk once, not on every attempt, and logs its recovery once. Other errors
    are logged every time, with their traceback. Thread-safe."""

    def __init__(self, logger: logging.Logger, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._last_seen: dict[tuple[str, str], float] = {}

    def record(self, operation: str, error: BaseException) -> None:
        """Log the failure. `operation` is the beginning of a sentence: "The scheduler cannot go on"."""
        failure = failure_of(error)
        if failure is None:
            self._logger.error("%s: %s", operation, error, exc_info=error)
            return
        reason = failure.reason
        now = self._stopwatch()
        with self._lock:
            self._last_seen = {key: at for key, at in self._last_seen.items() if now - at <= _QUIET_S}
            is_new = (operation, reason) not in self._last_seen
            self._last_seen[operation, reason] = now
        if is_new:
            advice = f" {failure.remedy}" if failure.is_damage else ""
            self._logger.error("%s: %s (%s).%s", operation, reason, failure_detail(error), advice)

    @contextmanager
    def guarding(self, operation: str) -> Iterator[None]:
        """Record what fails in the block. A failure of the database is raised: what follows would fail, too."""
        try:
            yield
        except Exception as error:
            if is_database_failure(error):
                raise
            self.record(operation, error)

    def resolved(self, operation: str, message: str) -> None:
        """Log `message` if the operation failed before."""
        with self._lock:
            failed = [key for key in self._last_seen if key[0] == operation]
            for key in failed:
                del self._last_seen[key]
        if failed:
            self._logger.warning("%s", message)
