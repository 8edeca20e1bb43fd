"""Database engine: SQLite or PostgreSQL with the same guarantees, migrated to the newest schema."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Engine, create_engine, event, inspect
from sqlalchemy.engine import Connection, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError

from trainyard_protocol.errors import FailedPrecondition
from trainyard_server.storage.failures import Failure, failure_of

if TYPE_CHECKING:
    from alembic.config import Config

WRITES = {"trainyard_write": True}
"""Execution options of a connection whose transactions write; only one of them runs at a time."""

SQLITE_FILE = "trainyard.db"
"""The embedded database, in the data directory."""

BUSY_S = 20.0
"""How long a transaction waits for another one that writes: shorter than the timeout of an agent, which gets an error
then."""

_BUSY_MS = int(BUSY_S * 1000)
_IDLE_MS = 30_000
"""PostgreSQL then ends a transaction whose server is frozen, or gone with its machine: all others wait for it."""

_POSTGRESQL = "postgresql+psycopg"
_CONNECT = {
    "client_encoding": "utf8",  # whatever that of the database, or of the environment, is
    "connect_timeout": 5,
    # A host that disappears is noticed within half a minute, not two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

ACQUIRE_WRITE_LOCK = f"SELECT pg_advisory_xact_lock({0x7472_6169_6E79_6472})"  # "trainydr"
"""Statement of PostgreSQL: waits for the lock of the transaction that writes."""

logger = logging.getLogger(__name__)


class UnusableUrl(ValueError):
    """Not the URL of a database; the message has valid ones."""


def opened(url: str, durable: bool, report: Callable[[Failure], None] = lambda _: None) -> Engine:
    """Open the database and migrate it. `report` gets each failure of a statement.

    Raises UnusableUrl; FailedPrecondition for a schema that this release cannot migrate; SQLAlchemyError where the
    database cannot be used.
    Each transaction reads one snapshot. On a connection with WRITES it is the only one that writes.
    """
    engine = _engine(url)

    @event.listens_for(engine, "handle_error")
    def _failed(context: ExceptionContext) -> None:
        if context.sqlalchemy_exception is not None:
            failure = failure_of(context.sqlalchemy_exception)
            if failure is not None:
                report(failure)

    match engine.dialect.name:
        case "sqlite":
            _prepare_sqlite(engine, durable)
        case "postgresql":
            _prepare_postgresql(engine, durable)
    try:
        with engine.connect() as connection:
            _check_encoding(connection)
            schema = _schema(connection)
        _check(schema)
    except FailedPrecondition:
        engine.dispose()
        raise
    if schema != newest_schema():  # alembic takes half a second to load
        if schema is not None:
            logger.info("migrating the database from schema %s to %s", schema, newest_schema())
        with engine.connect().execution_options(**WRITES) as connection, _unlinked(connection):
            _migrate(connection)
    return engine


def sqlite_url(directory: Path) -> str:
    """The URL of the embedded database of a data directory."""
    return f"sqlite:///{directory / SQLITE_FILE}"


def examined(url: str) -> URL:
    """The URL of a database that this release can use, without a change of it. Raises UnusableUrl; FailedPrecondition
    for one that is empty, or of another encoding or release; SQLAlchemyError where it cannot be read."""
    engine = _engine(url)
    try:
        with engine.connect() as connection:
            _check_encoding(connection)
            schema = _schema(connection)
    finally:
        engine.dispose()
    if schema is None and engine.dialect.name == "sqlite":
        raise FailedPrecondition(
            "It is empty. The next start makes the tables of a new service there; restore a backup if it had jobs."
        )
    _check(schema)
    return engine.url


@contextmanager
def _unlinked(connection: Connection) -> Iterator[None]:
    """Let a migration copy a table of SQLite to which others refer (its documentation of ALTER TABLE)."""
    if connection.dialect.name != "sqlite":
        yield
        return
    cursor = connection.connection.cursor()
    cursor.execute("PRAGMA foreign_keys=OFF")
    yield
    cursor.execute("PRAGMA foreign_keys=ON")


def _check_encoding(connection: Connection) -> None:
    """Raise FailedPrecondition for a database of PostgreSQL that does not store all characters."""
    if connection.dialect.name != "postgresql":
        return
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        raise FailedPrecondition(
            f"The database has the encoding {encoding}, and Trainyard needs UTF8. Make one with it, and use that: "
            "createdb --encoding UTF8 --template template0 NAME."
        )


def _schema(connection: Connection) -> str | None:
    """The schema revision of the database; None if it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar_one_or_none()


def newest_schema() -> str:
    """The newest schema revision of this program."""
    return max(_revisions())


def _revisions() -> list[str]:
    """The schema revisions that this program can migrate, by the names of its scripts."""
    directory = files("trainyard_server") / "migrations" / "versions"
    scripts = (re.fullmatch(r"v(\d{4})_\w+\.py", path.name) for path in directory.iterdir())
    return [script[1] for script in scripts if script is not None]


def _check(schema: str | None) -> None:
    """Raise FailedPrecondition for a schema that no script of this program starts from."""
    oldest, newest = min(_revisions()), newest_schema()
    if schema is None or oldest <= schema <= newest:
        return
    if schema > newest:
        raise FailedPrecondition(
            f"A newer release has brought the database to schema {schema}; this one supports up to {newest}. Start "
            "that release again, or this one with a copy of the data from before the upgrade."
        )
    raise FailedPrecondition(
        f"The database has schema {schema}, of an older version, and this release reads schema {oldest} or newer: "
        "start it with an empty database, or with another --data-dir or --state-dir, and submit again what you need; "
        "the version that made the database still opens it."
    )


def migrations() -> "Config":
    """The configuration of alembic."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "trainyard_server:migrations")
    return config


def _migrate(connection: Connection) -> None:
    """Migrate the schema to the newest revision."""
    from alembic import command

    config = migrations()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername not in ("sqlite", _POSTGRESQL):
            raise UnusableUrl(f"it must look like {_POSTGRESQL}://user:password@host/database")
        if parsed.drivername == "sqlite":
            return create_engine(parsed)
        given = {name: value for name, value in _CONNECT.items() if name not in parsed.query}
        return create_engine(parsed, pool_pre_ping=True, connect_args=given)
    except ArgumentError as error:
        raise UnusableUrl(f"it must look like {_POSTGRESQL}://user:password@host/database") from error
    except ModuleNotFoundError as error:
        raise UnusableUrl(f"its driver is not installed: pip install 'trainyard[postgresql]' ({error})") from error


def _prepare_postgresql(engine: Engine, durable: bool) -> None:
    """The same two promises as for SQLite. One writer at a time: whoever else writes waits for a lock that
    ends with the transaction. Readers see the database as it was at their first statement."""
    settings: dict[str, object] = {"lock_timeout": _BUSY_MS, "idle_in_transaction_session_timeout": _IDLE_MS}
    if not durable:
        settings["synchronous_commit"] = "off"
    statement = "; ".join(f"SET {name} = {value}" for name, value in settings.items())

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.execute(statement)
        connection.commit()

    @event.listens_for(engine, "begin")
    def _began(connection: Connection) -> None:
        if connection.get_execution_options().get("trainyard_write", False):
            connection.exec_driver_sql(ACQUIRE_WRITE_LOCK)
        else:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def _prepare_sqlite(engine: Engine, durable: bool) -> None:
    """WAL, so that readers and the writer do not wait for each other; a write transaction is one from its
    first statement on (BEGIN IMMEDIATE), so that what it has read cannot change before it writes."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself
        cursor = connection.cursor()
        for pragma in (
            "journal_mode=WAL",
            f"synchronous={'FULL' if durable else 'OFF'}",
            f"busy_timeout={_BUSY_MS}",
            "foreign_keys=ON",
            "case_sensitive_like=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _began(connection: Connection) -> None:
        writes = connection.get_execution_options().get("trainyard_write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
