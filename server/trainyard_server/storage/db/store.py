"""The database of a server: opened, read, and written in transactions."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from sqlalchemy import URL, Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from trainyard_server.storage.db.base import dumps, engine, revisions
from trainyard_server.storage.db.live.reader import LiveReader
from trainyard_server.storage.db.live.rows import LiveRows, LiveTransaction
from trainyard_server.storage.db.queries.job_inputs import JobInputs
from trainyard_server.storage.db.queries.reader import Reader, Revision
from trainyard_server.storage.db.repository import SERVICE_ACTOR, JobEvents, Writer
from trainyard_server.storage.db.tables.audit_trail import current_trail
from trainyard_server.storage.failures import Failure


class Store:
    """A database at the newest schema."""

    def __init__(self, url: str, durable: bool = True, job_events: Sequence[JobEvents] = ()) -> None:
        """Raises UnusableUrl; SQLAlchemyError where the database cannot be used."""
        self._job_events = job_events
        self.damage: Failure | None = None
        """The damage that a statement has met, which the next one may not meet. It lasts until the next start."""
        self._engine = engine.opened(url, durable, self._failed)
        self._inputs = JobInputs()
        self._live = LiveRows()
        self._is_unsure = False
        self._writing = Lock()

    @classmethod
    def at(cls, directory: Path, durable: bool = True, job_events: Sequence[JobEvents] = ()) -> "Store":
        """The embedded default: SQLite in a directory, which must exist. Commits survive the end of this process, and a
        power failure only if `durable`."""
        return cls(engine.sqlite_url(directory), durable, job_events)

    @property
    def url(self) -> URL:
        """The address of the database, with its password."""
        return self._engine.url

    @property
    def exclusive(self) -> bool:
        """Whether no other process uses the database."""
        return self._engine.dialect.name == "sqlite"

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def dumping(self, directory: Path) -> Iterator[dumps.Dump]:
        """Copy the database as it is now into a directory; see `dumps.dumping`."""
        with dumps.dumping(self.url, directory) as dump:
            yield dump

    def _failed(self, failure: Failure) -> None:
        if failure.is_damage:
            self.damage = failure

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """A consistent view of the database."""
        with self._engine.connect() as connection, Session(connection, autoflush=False) as session:
            yield Reader(session, self._inputs)

    @contextmanager
    def live(self) -> Iterator[Reader]:
        """The live rows as the last commit has left them, mostly without a query; all else as `read` has it. Rows of
        different jobs may be of different commits."""
        if not self.exclusive or self._live.agents is None or self._live.revision is None:
            with self.read() as reader:
                yield reader
            return
        with Session(self._engine, autoflush=False) as session:  # it connects when it is asked for something
            yield LiveReader(session, self._inputs, self._live)

    def is_idle(self, agent_id: str) -> bool:
        """Whether memory tells, and says that nothing runs on the agent."""
        return self.exclusive and self._live.agents is not None and not self._live.jobs_on(agent_id)

    @contextmanager
    def write(self, actor: str = SERVICE_ACTOR) -> Iterator["Writer"]:
        """A transaction: committed when the block ends, rolled back when it raises. `actor` causes its events. The
        first one of a request that changes something is also of that request: see `Writer.serve`."""
        trail = current_trail()
        with self.write_together(actor) as writer:
            if trail is not None:
                writer.serve(trail)
            yield writer

    @contextmanager
    def write_together(self, actor: str = SERVICE_ACTOR) -> Iterator["Writer"]:
        """A transaction of the requests that `Writer.serve` names."""
        with self._one_at_a_time(), self._engine.connect().execution_options(**engine.WRITES) as connection:
            with connection.begin(), Session(connection, autoflush=True, expire_on_commit=False) as session:
                before = self._known_revision(connection)
                live = LiveTransaction(self._live, session, before)
                live.begin()
                writer = Writer(session, self._inputs, live, actor, self._job_events)
                yield writer
                self._is_unsure = True  # a commit that fails may be done or not: all is then read anew
                writer.flush()
                audited = [(trail, trail.add_to(session)) for trail in writer.trails]
                session.flush()
                changes = writer.changes
                revision = changes.next(before, counts_writes=not self.exclusive)
                if revision != before and not self.exclusive:
                    changes.record(connection, revision)
                live.changed_at(revision.value, changes.jobs, changes.agents)
            live.committed(revision, changes.jobs, changes.agents)
            self._is_unsure = False
        self._inputs.add(writer.new_inputs)
        for trail, row in audited:
            if row is not None:
                trail.committed(row)

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """The transactions of this process that write, from their first statement until their rows are in memory. One
        that waits for too long fails as one that waits for the database does."""
        if not self._writing.acquire(timeout=engine.BUSY_S):
            raise OperationalError("BEGIN", None, TimeoutError("the database is locked by another transaction"))
        try:
            yield
        finally:
            self._writing.release()

    def _known_revision(self, connection: Connection) -> Revision:
        """The revision before this transaction. What is in memory is forgotten where another process has written, and
        where that is not what was committed."""
        last = self._live.revision
        if self.exclusive and last is not None:
            if self._is_unsure:
                self._live.forget()
                last = last._replace(value=last.value + 2)  # what has changed since the last one is not known
            return last
        revision = revisions.read(connection)
        if last != revision or self._is_unsure:
            self._live.forget()
        return revision
