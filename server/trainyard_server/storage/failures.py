"""Trouble that passes: a database that is away, a disk that is full. What it is, and how it is said once."""

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping

from sqlalchemy import exc

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

# What SQLite and PostgreSQL say of what is no mistake of a statement.
_WORDS = (
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
    ("deadlock", "somebody else used the database in the same moment"),
)
_AWAY = "the database does not answer"
_QUIET_S = 60.0  # trouble that was not seen for so long is new when it comes back


def reason(error: BaseException) -> str | None:
    """Why the database or the disk could not be used: half a sentence without a path, a host or a secret.
    None for everything else."""
    if isinstance(error, OSError):
        return _FILES.get(error.errno or 0)
    return _of_database(error)


def is_database(error: BaseException) -> bool:
    """Whether it is the database that cannot be used: then nothing else that needs it has to be tried."""
    return _of_database(error) is not None


def detail(error: BaseException) -> str:
    """What the disk or the database itself said, in one line."""
    text = str(getattr(error, "orig", None) or error).strip()
    return text.partition("\n")[0]


def _of_database(error: BaseException) -> str | None:
    if isinstance(error, exc.TimeoutError):
        return "every connection to the database is in use"
    if not isinstance(error, exc.DBAPIError):
        return None
    passing = isinstance(error, exc.OperationalError | exc.InterfaceError | exc.InternalError)
    # The plain class is what SQLite raises for a damaged file; the other kinds of it are mistakes of ours.
    if not (passing or type(error) is exc.DatabaseError or error.connection_invalidated):
        return None
    said = str(error.orig).lower()
    return next((meaning for words, meaning in _WORDS if words in said), _AWAY)


class Troubles:
    """Says that something does not work once, and not each time it is tried; and once that it works again.
    An error that is no passing trouble is said every time, with its traceback. Safe to use from any thread."""

    def __init__(self, logger: logging.Logger, stopwatch: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._stopwatch = stopwatch
        self._lock = threading.Lock()
        self._known: dict[tuple[str, str], float] = {}

    def note(self, what: str, error: BaseException) -> None:
        """`what` is the beginning of a sentence: "The scheduler cannot go on"."""
        why = reason(error)
        if why is None:
            self._logger.error("%s: %s", what, error, exc_info=error)
            return
        now = self._stopwatch()
        with self._lock:
            self._known = {said: at for said, at in self._known.items() if now - at <= _QUIET_S}
            news = (what, why) not in self._known
            self._known[what, why] = now
        if news:
            self._logger.error("%s: %s (%s).", what, why, detail(error))

    def over(self, what: str, words: str) -> None:
        """It has worked. Says `words` where it did not before."""
        with self._lock:
            troubles = [said for said in self._known if said[0] == what]
            for said in troubles:
                del self._known[said]
        if troubles:
            self._logger.warning("%s", words)
