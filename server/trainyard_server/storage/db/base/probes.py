"""Database probes: latency, writability, schema and integrity.

They use a connection of their own, so that probes and requests do not wait for each other.
"""

import time
from dataclasses import dataclass

from sqlalchemy import Connection, create_engine, event, func, select, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from trainyard_server.storage.db.base.engine import ACQUIRE_WRITE_LOCK

PATIENCE_S = 2.0
"""Timeout of one query, in seconds."""

_SAMPLES = 5


class Unwritable(Exception):
    """The database answers, but refuses writes. The message is half a sentence."""


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """`latency_s` is the median of some queries. `schema` is the schema revision of the database. `damage` has a line
    for each defect that SQLite finds; it is empty for PostgreSQL."""

    kind: str
    latency_s: float
    size_bytes: int
    schema: str
    damage: tuple[str, ...]


class DatabaseProbe:
    """A probe of one database, for one thread at a time. Raises SQLAlchemyError where the database does not answer."""

    def __init__(self, url: URL) -> None:
        self._sqlite = url.get_backend_name() == "sqlite"
        limits: dict[str, object] = {"timeout": PATIENCE_S}
        if not self._sqlite:
            milliseconds = int(PATIENCE_S * 1000)
            # A lock is to be told from a slow query.
            options = f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds * 3 // 4}"
            limits = {"connect_timeout": int(PATIENCE_S), "options": options}
        self._engine = create_engine(
            url, pool_size=1, max_overflow=0, pool_timeout=PATIENCE_S, pool_pre_ping=True, connect_args=limits
        )
        if self._sqlite:

            @event.listens_for(self._engine, "connect")
            def _connected(connection: object, _record: object) -> None:
                connection.isolation_level = None  # type: ignore[attr-defined]  # the driver begins nothing by itself

    def close(self) -> None:
        self._engine.dispose()

    def ask(self) -> float:
        """Latency of a query, in seconds. Raises Unwritable."""
        with self._engine.connect() as connection:
            began = time.perf_counter()
            connection.execute(text("SELECT count(*) FROM leases"))
            took = time.perf_counter() - began
            # The writers' lock proves it; nothing is written.
            if self._sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.exec_driver_sql("ROLLBACK")
            elif connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on":
                raise Unwritable("the database is read-only")
            else:
                connection.exec_driver_sql(ACQUIRE_WRITE_LOCK)
                connection.rollback()
            return took

    def facts(self) -> DatabaseFacts:
        """Read all of a SQLite database: it may take seconds."""
        latency_s = sorted(self.ask() for _ in range(_SAMPLES))[_SAMPLES // 2]
        with self._engine.connect() as connection:
            return DatabaseFacts(
                kind="SQLite" if self._sqlite else "PostgreSQL",
                latency_s=latency_s,
                size_bytes=self._size(connection),
                schema=str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()),
                damage=_damage(connection) if self._sqlite else (),
            )

    def _size(self, connection: Connection) -> int:
        if not self._sqlite:
            size = select(func.pg_database_size(func.current_database()))
            return int(connection.execute(size).scalar_one())
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def _damage(connection: Connection) -> tuple[str, ...]:
    try:
        rows = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
    except SQLAlchemyError as error:
        return (str(getattr(error, "orig", error)),)
    return tuple(str(row) for row in rows if row != "ok")
