"""Writes to live rows: into memory at once, into the database when something asks that, or at the end."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.attributes import set_committed_value

from trainyard_server.storage.db.base.columns import Table
from trainyard_server.storage.db.base.models import DeletedJobRow, JobRow, RunRow
from trainyard_server.storage.db.base.revisions import Changes
from trainyard_server.storage.db.base.statements import ConcurrentUpdate, stored
from trainyard_server.storage.db.live.pending import PendingWrites
from trainyard_server.storage.db.live.reader import LiveReader
from trainyard_server.storage.db.live.rows import LiveJob, LiveTransaction
from trainyard_server.storage.db.queries.job_inputs import JobInputs


class LiveWriter(LiveReader):
    """The part of a `repository.Writer` that keeps memory and database the same."""

    def __init__(self, session: Session, inputs: JobInputs, live: LiveTransaction) -> None:
        super().__init__(session, inputs, live)
        self.live: LiveTransaction = live
        self.changes = Changes()
        self._database = session.connection()
        self._writes = [PendingWrites()]
        """Those of the transaction, and above them those of a block that is written as a whole, or not at all."""
        self._savepoint: SessionTransaction | None = None

    @property
    def session(self) -> Session:
        """The session, whose queries and statements see what was written before."""
        self.flush()
        return self._session

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Write all of this block, or nothing of it where it raises. It must not be inside of another one."""
        restore = self.live.saved()
        self._writes.append(PendingWrites())
        try:
            yield
            if self._savepoint is not None:
                self._savepoint.commit()
            self._writes[0].join(self._writes[1])
        except BaseException:
            if self._savepoint is not None:
                self._savepoint.rollback()
            restore()
            raise
        finally:
            self._savepoint = None
            self._writes.pop()

    def flush(self) -> None:
        """Execute the statements that are still to be."""
        outer, *inner = self._writes
        if inner and self._savepoint is None:
            outer.flush(self._database)
            self._savepoint = self._session.begin_nested()
        self._writes[-1].flush(self._database)

    @property
    def _connection(self) -> Connection:
        """The connection of the session, which sees what was written before."""
        self.flush()
        return self._database

    def _change(
        self, own: Table, given: Table, values: Mapping[str, Any], before: Mapping[str, Any] | None = None, **key: Any
    ) -> None:
        """Write values into `own`, the row in memory with that key, and into the row that the caller has.

        Raises ConcurrentUpdate where it does not have the values of `before`.
        """
        before, values = before or {}, stored(type(own), values)
        if any(getattr(own, name) != value for name, value in before.items()):
            raise ConcurrentUpdate
        self._writes[-1].change(type(own), key, before, values)
        self.changes.wrote = True
        for row in (own, given):
            if not self.live.is_shared(row):
                set_values(row, **values)

    def _change_job(self, job: JobRow, before: Mapping[str, Any], **values: Any) -> None:
        self._change(self._live_job(job.key).row, job, values, before, key=job.key)
        self.changes.jobs.add(job.key)

    def _note_run(self, run: RunRow, before: Mapping[str, Any], **values: Any) -> None:
        job = self._live_job(run.job_key)
        job.own(run.run_id)
        own = next(row for row in job.runs if row.run_id == run.run_id)
        self._change(own, run, values, before, run_id=run.run_id)

    def _note_replica(self, run_id: str, task: str, before: Mapping[str, Any], **values: Any) -> None:
        if (job := self.live.known_job_of_run(run_id)) is not None:
            job.own(run_id)
        own = self.replica(run_id, task)
        if own is None:
            raise NoResultFound(f"There is no replica {task} of a run {run_id}.")
        self._change(own, own, values, before, run_id=run_id, task=task)

    def _live_job(self, key: int) -> LiveJob:
        """The job in memory. Raises NoResultFound if it was deleted."""
        job = self.live.job(key)
        if job is None:
            raise NoResultFound(f"There is no job with the key {key}.")
        return job


_NEWEST_KEYS = select(*(select(func.max(row.key)).scalar_subquery() for row in (JobRow, DeletedJobRow)))


def new_keys(session: Session, many: int) -> Iterable[int]:
    """Keys of jobs that no job has, or has had."""
    if session.connection().dialect.name == "postgresql":
        sequence = func.nextval(func.pg_get_serial_sequence("jobs", "key"))
        return session.scalars(select(sequence).select_from(func.generate_series(1, many)))
    # SQLite would give the key of the newest job again after that was deleted.
    last = max(key or 0 for key in session.execute(_NEWEST_KEYS).one())
    return range(last + 1, last + 1 + many)


def set_values(row: Table, **values: Any) -> None:
    """Let a row have what was just written into the database."""
    for name, value in values.items():
        set_committed_value(row, name, value)
