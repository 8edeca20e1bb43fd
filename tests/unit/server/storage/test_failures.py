"""Transient failures: their reason, and the log that reports each once."""

import errno
import sqlite3

import pytest
from sqlalchemy import exc

from trainyard_server.storage.failures import failure_of, failure_reason, is_database_failure
from trainyard_server.storage.files import LockTimeout


def of_sqlite(message: str, kind: type[exc.DBAPIError] = exc.OperationalError) -> exc.DBAPIError:
    return kind("SELECT secret FROM jobs", {}, sqlite3.OperationalError(message))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(errno.ENOSPC, "x"), "the disk of the data directory is full"),
        (OSError(errno.EDQUOT, "x"), "the disk of the data directory is full"),
        (OSError(errno.EROFS, "x"), "the data directory cannot be written"),
        (OSError(errno.EIO, "x"), "the disk of the data directory fails"),
        (OSError(errno.ENOENT, "x"), None),
        (LockTimeout("x"), "another writer holds a file of the data directory for too long"),
        (of_sqlite("database is locked"), "the database is locked by another process"),
        (of_sqlite("database or disk is full"), "the disk of the database is full"),
        (of_sqlite("attempt to write a readonly database"), "the database is read-only"),
        (of_sqlite("disk I/O error"), "the disk of the database fails"),
        (of_sqlite("database disk image is malformed", exc.DatabaseError), "the database is damaged"),
        (of_sqlite("server closed the connection unexpectedly"), "the database does not answer"),
        (of_sqlite("no such column: x", exc.ProgrammingError), None),
        (of_sqlite("UNIQUE constraint failed", exc.IntegrityError), None),
        (exc.TimeoutError(), "every connection to the database is in use"),
        (exc.NoResultFound(), None),
        (ValueError("x"), None),
    ],
)
def test_reason_of_a_transient_failure_has_no_path_and_no_statement(error: Exception, reason: str | None) -> None:
    assert failure_reason(error) == reason
    assert is_database_failure(error) == (reason is not None and not isinstance(error, OSError))


def test_remedy_says_what_passes_by_itself_what_needs_room_and_what_a_restore() -> None:
    cases = (
        (of_sqlite("database is locked"), "continues automatically", False),
        (of_sqlite("server closed the connection unexpectedly"), "continues automatically", False),
        (of_sqlite("database or disk is full"), "Free some space", False),
        (OSError(errno.ENOSPC, "x"), "Free some space", False),
        (of_sqlite("attempt to write a readonly database"), "Make it writable", False),
        (of_sqlite("disk I/O error"), "the disk can be read and written", False),
        (of_sqlite("database disk image is malformed", exc.DatabaseError), "restore the database", True),
        (of_sqlite("file is not a database", exc.DatabaseError), "cannot repair this", True),
    )
    wrong = [
        (error, failure)
        for error, remedy, is_damage in cases
        if (failure := failure_of(error)) is None or remedy not in failure.remedy or failure.is_damage is not is_damage
    ]
    assert wrong == []
