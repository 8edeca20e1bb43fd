"""Database engine: SQLite or PostgreSQL with the same guarantees, migrated to the newest schema."""

from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import ArgumentError

WRITES = {"trainyard_write": True}
"""Execution options of a connection whose transactions write; only one of them runs at a time."""

_BUSY_MS = 20_000  # shorter than the timeout of an agent, which then gets an error
_POSTGRESQL = "postgresql+psycopg"
_PATIENCE = {
    "connect_timeout": 5,
    # A host that disappears is noticed within half a minute, not two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_WRITER = 0x7472_6169_6E79_6472  # the number of our lock in a database: "trainydr"


class UnusableUrl(ValueError):
    """Not the URL of a database; the message has valid ones."""


def opened(url: str, durable: bool) -> Engine:
    """Open the database and migrate it. Raises UnusableUrl; SQLAlchemyError where it cannot be used.

    Each transaction reads one snapshot. On a connection with WRITES it is the only one that writes.
    """
    engine = _engine(url)
    match engine.dialect.name:
        case "sqlite":
            _prepare_sqlite(engine, durable)
        case "postgresql":
            _prepare_postgresql(engine, durable)
    with engine.connect().execution_options(**WRITES) as connection:
        _migrate(connection)
    return engine


def migrations() -> Config:
    """The configuration of alembic."""
    config = Config()
    config.set_main_option("script_location", "trainyard_server:migrations")
    return config


def _migrate(connection: Connection) -> None:
    """Migrate the schema to the newest revision."""
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
        patience = {name: value for name, value in _PATIENCE.items() if name not in parsed.query}
        return create_engine(parsed, pool_pre_ping=True, connect_args=patience)
    except ArgumentError as error:
        raise UnusableUrl(f"it must look like {_POSTGRESQL}://user:password@host/database") from error
    except ModuleNotFoundError as error:
        raise UnusableUrl(
            f"its driver is not installed: pip install 'trainyard[postgresql]' ({error})"
        ) from error


def _prepare_postgresql(engine: Engine, durable: bool) -> None:
    """The same two promises as for SQLite. One writer at a time: whoever else writes waits for a lock that
    ends with the transaction. Readers see the database as it was at their first statement."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        if not durable:
            connection.execute("SET synchronous_commit = off")
            connection.commit()

    @event.listens_for(engine, "begin")
    def _began(connection: Connection) -> None:
        if connection.get_execution_options().get("trainyard_write", False):
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITER})")
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
