"""What passes is told from what is a bug, and is said once."""

import errno
import logging
import sqlite3

import pytest
from sqlalchemy import exc

from trainyard_server.storage.failures import Troubles, detail, is_database, reason


def of_sqlite(words: str, kind: type[exc.DBAPIError] = exc.OperationalError) -> exc.DBAPIError:
    return kind("SELECT secret FROM jobs", {}, sqlite3.OperationalError(words))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (OSError(errno.ENOSPC, "x"), "the disk of the data directory is full"),
        (OSError(errno.EDQUOT, "x"), "the disk of the data directory is full"),
        (OSError(errno.EROFS, "x"), "the data directory cannot be written"),
        (OSError(errno.EIO, "x"), "the disk of the data directory fails"),
        (OSError(errno.ENOENT, "x"), None),
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
def test_reason_of_what_passes_names_no_path_and_no_statement(error: Exception, why: str | None) -> None:
    assert reason(error) == why
    assert is_database(error) == (why is not None and not isinstance(error, OSError))


def test_detail_is_one_line_without_the_statement() -> None:
    assert detail(of_sqlite("connection refused\nIs the server running?")) == "connection refused"


def test_the_same_trouble_is_said_once_until_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    troubles = Troubles(logging.getLogger("test"), lambda: now)
    full, locked = OSError(errno.ENOSPC, "No space left"), of_sqlite("database is locked")

    def said() -> int:
        count = len(caplog.records)
        caplog.clear()
        return count

    troubles.over("It stands still", "It goes on.")
    assert said() == 0
    for _ in range(10):
        troubles.note("It stands still", full)
        troubles.note("It stands still", locked)
        now += 50
    assert said() == 2
    troubles.over("It stands still", "It goes on.")
    assert [record.getMessage() for record in caplog.records] == ["It goes on."]
    assert said() == 1
    troubles.note("It stands still", full)
    assert said() == 1
    now += 61
    troubles.note("It stands still", full)
    assert said() == 1


def test_a_bug_is_said_each_time_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    troubles = Troubles(logging.getLogger("test"))
    for _ in range(2):
        troubles.note("It stands still", KeyError("x"))
    assert [bool(record.exc_info) for record in caplog.records] == [True, True]
