"""Questions about the database as such: does it answer, how fast, does it take writes, is it whole.

They are asked on a connection of their own, so that neither they nor the requests wait for each other's.
"""

import time
from dataclasses import dataclass

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, event, func, select, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError

from trainyard_server.storage.db.engine import migrations
from trainyard_server.storage.db.models import LeaseRow

PATIENCE_S = 2.0
"""How long the database may take for one question."""

_SAMPLES = 5


class Unwritable(Exception):
    """It answers, and takes no writes; the message is half a sentence."""


@dataclass(frozen=True, slots=True)
class Facts:
    """`latency_s` is the median of some questions; `schema` and `newest` are revisions of the schema: of the database
    and of this program. `damage` is what SQLite found wrong, one line each; PostgreSQL is not asked."""

    kind: str
    latency_s: float
    size_bytes: int
    schema: str
    newest: str
    damage: tuple[str, ...]
    leases: tuple[tuple[str, str], ...]


class DatabaseProbe:
    """Asks one database. Raises SQLAlchemyError where it does not answer; used by one thread at a time."""

    def __init__(self, url: URL) -> None:
        self._sqlite = url.get_backend_name() == "sqlite"
        limits: dict[str, object] = {"timeout": PATIENCE_S}
        if not self._sqlite:
            milliseconds = int(PATIENCE_S * 1000)
            limits = {"connect_timeout": int(PATIENCE_S), "options": f"-c statement_timeout={milliseconds}"}
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
        """How long an answer takes, in seconds. Raises Unwritable."""
        with self._engine.connect() as connection:
            began = time.perf_counter()
            connection.execute(text("SELECT count(*) FROM leases"))
            took = time.perf_counter() - began
            if self._sqlite:
                # Taking the lock of writers is the whole proof; nothing is written.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                connection.exec_driver_sql("ROLLBACK")
            elif connection.execute(text("SHOW transaction_read_only")).scalar_one() == "on":
                raise Unwritable("the database is read-only")
            return took

    def facts(self) -> Facts:
        """Reads all of a SQLite database: it may take seconds."""
        latency_s = sorted(self.ask() for _ in range(_SAMPLES))[_SAMPLES // 2]
        with self._engine.connect() as connection:
            leases = connection.execute(select(LeaseRow.name, LeaseRow.holder).order_by(LeaseRow.name))
            return Facts(
                kind="SQLite" if self._sqlite else "PostgreSQL",
                latency_s=latency_s,
                size_bytes=self._size(connection),
                schema=str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one()),
                newest=newest_schema(),
                damage=_damage(connection) if self._sqlite else (),
                leases=tuple((name, holder) for name, holder in leases),
            )

    def _size(self, connection: Connection) -> int:
        if not self._sqlite:
            size = select(func.pg_database_size(func.current_database()))
            return int(connection.execute(size).scalar_one())
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def newest_schema() -> str:
    """The revision that this program brings a database to."""
    return str(ScriptDirectory.from_config(migrations()).get_current_head())


def _damage(connection: Connection) -> tuple[str, ...]:
    try:
        rows = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
    except SQLAlchemyError as error:
        return (str(getattr(error, "orig", error)),)
    return tuple(str(row) for row in rows if row != "ok")
