"""Copies of the database at one moment, while others write it, and what they contain."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL

from trainyard_protocol.errors import FailedPrecondition, Unavailable
from trainyard_server.storage.db.base.engine import SQLITE_FILE
from trainyard_storage.backups.snapshots import copy_database

POSTGRESQL_FILE = "trainyard.pgdump"

_COUNTED = ("jobs", "runs", "secrets", "audit", "tokens", "members", "notification_channels")
_NO_PROGRAM = (
    "{} is not installed on the server, so its PostgreSQL database cannot be backed up. Install PostgreSQL's client "
    "programs of the database's version (Debian: postgresql-client)."
)


@dataclass(slots=True)
class Dump:
    """A copy of the database: its kind, schema revision and number of rows of some tables."""

    kind: str
    schema: str
    counts: dict[str, int] = field(default_factory=dict)
    _url: URL | None = None
    _snapshot: str = ""

    def write_rest(self, directory: Path) -> None:
        """Write what was not copied yet. Raises Unavailable, FailedPrecondition."""
        if self._url is not None:
            _pg_dump(self._url, self._snapshot, directory / POSTGRESQL_FILE)


@contextmanager
def dumping(url: URL, directory: Path) -> Iterator[Dump]:
    """Copy the database as it is now into a directory: SQLite at once; PostgreSQL, as of now, by `write_rest` in the
    block."""
    if url.get_backend_name() == "sqlite":
        assert url.database is not None
        target = directory / SQLITE_FILE
        copy_database(Path(url.database), target)
        with closing(sqlite3.connect(target)) as copy:
            counts = {table: copy.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in _COUNTED}  # noqa: S608 - names of ours
            schema = str(copy.execute("SELECT version_num FROM alembic_version").fetchone()[0])
        yield Dump("sqlite", schema, counts)
        return
    engine = create_engine(url, isolation_level="REPEATABLE READ")
    try:
        with engine.connect() as connection:
            yield _exported(connection, url)
    finally:
        engine.dispose()


def _exported(connection: Connection, url: URL) -> Dump:
    snapshot = str(connection.execute(text("SELECT pg_export_snapshot()")).scalar_one())
    counts = {
        table: int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())  # noqa: S608 - names of ours
        for table in _COUNTED
    }
    schema = str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one())
    return Dump("postgresql", schema, counts, url, snapshot)


def _pg_dump(url: URL, snapshot: str, path: Path) -> None:
    plain = url.set(drivername="postgresql", password=None).render_as_string()
    environment = dict(os.environ)
    if url.password:
        environment["PGPASSWORD"] = str(url.password)  # no command line has it
    command = ["pg_dump", "--format=custom", "--compress=0", "--no-owner", f"--snapshot={snapshot}"]
    try:
        done = subprocess.run(
            [*command, f"--file={path}", f"--dbname={plain}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise FailedPrecondition(_NO_PROGRAM.format("pg_dump")) from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unavailable(f"pg_dump could not copy the database: {lines[-1]}")
