"""The database. Every write is guarded by the state that was read and stands in one transaction with its event.

`Store.read()` gives a consistent view; `Store.write()` a transaction that nobody else writes beside. A state
moves only by `move_job`, `move_run` and `move_replica`, which refuse what the tables of moves do not have, and
raise `Overtaken` when the row is no longer in the state that was read. Rows are handed out as they are in the
database and are not to be changed. Nothing here calls the network or touches a log.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import URL, ColumnElement, CursorResult, bindparam, case, delete, func, select, update
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import Update

from trainyard_protocol.states import (
    FINAL_JOB_STATES,
    JOB_MOVES,
    REPLICA_MOVES,
    RUN_MOVES,
    JobState,
    ReplicaState,
    RunState,
    check_move,
)
from trainyard_protocol.sync import AgentInfo, LogEnd, Stall
from trainyard_server.domain.lifecycle.decisions import ReplicaChange
from trainyard_server.domain.scheduling.resources import Assignment
from trainyard_server.domain.scheduling.scheduler import Waiting
from trainyard_server.storage.db import engine as database
from trainyard_server.storage.db.models import (
    AgentRow,
    EventRow,
    InstallationRow,
    JobLabelRow,
    JobRow,
    LeaseRow,
    ReplicaRow,
    RunRow,
)

LIVE_RUNS = (RunState.PREPARING, RunState.RUNNING, RunState.STOPPING)


class Overtaken(Exception):
    """Somebody else changed the row since it was read: read again and decide anew."""


@dataclass(frozen=True, slots=True)
class Event:
    """A line of a job's history that is no move. `message` is also a line of the service's log, unless ""."""

    kind: str
    message: str = ""
    run: int | None = None
    task: str = ""


class Store:
    """A database that is at the newest schema."""

    def __init__(self, url: str, durable: bool = True) -> None:
        """Raises UnusableUrl; SQLAlchemyError where the database cannot be used."""
        self._engine = database.opened(url, durable)

    @classmethod
    def at(cls, directory: Path, durable: bool = True) -> "Store":
        """The embedded default: SQLite in a directory, which must exist. Only with `durable` does what was
        written survive a power failure; it survives the end of this process in any case."""
        return cls(f"sqlite:///{directory / 'trainyard.db'}", durable)

    @property
    def url(self) -> URL:
        """Where the database is, with its password."""
        return self._engine.url

    @property
    def exclusive(self) -> bool:
        """Whether this process has the database to itself."""
        return self._engine.dialect.name == "sqlite"

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator["Reader"]:
        """One consistent view of everything."""
        with self._engine.connect() as connection, Session(connection, autoflush=False) as session:
            yield Reader(session)

    @contextmanager
    def write(self) -> Iterator["Writer"]:
        """A transaction: all of it is durable when the block ends, nothing when it raises."""
        with (
            self._engine.connect().execution_options(**database.WRITES) as connection,
            connection.begin(),
            Session(connection, autoflush=True, expire_on_commit=False) as session,
        ):
            yield Writer(session)
            session.flush()


class Reader:
    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def session(self) -> Session:
        """For questions that are kept apart from here, such as `job_list`."""
        return self._session

    def job(self, project: str, job_id: str) -> JobRow | None:
        return self._session.scalar(select(JobRow).filter_by(project=project, job_id=job_id))

    def job_by_key(self, key: int) -> JobRow:
        return self._session.get_one(JobRow, key)

    def jobs(
        self, project: str, condition: ColumnElement[bool] | None, below: int | None, limit: int
    ) -> Sequence[JobRow]:
        """The project's jobs, the newest first, from the first whose key is below `below`."""
        query = select(JobRow).filter_by(project=project).order_by(JobRow.key.desc()).limit(limit)
        if condition is not None:
            query = query.where(condition)
        if below is not None:
            query = query.where(JobRow.key < below)
        return self._session.scalars(query).all()

    def unfinished(self) -> Sequence[JobRow]:
        """All jobs that are not over, the oldest first."""
        return self._session.scalars(
            select(JobRow).where(JobRow.state.not_in(FINAL_JOB_STATES)).order_by(JobRow.key)
        ).all()

    def queued(self) -> Sequence[JobRow]:
        return self._session.scalars(select(JobRow).filter_by(state=JobState.QUEUED)).all()

    def queue_page(self, offset: int, limit: int) -> Sequence[JobRow]:
        """Some of the jobs that wait, by their positions; those that have none come last."""
        order = (case((JobRow.position > 0, 0), else_=1), JobRow.position, JobRow.key)
        keys = (
            select(JobRow.key).filter_by(state=JobState.QUEUED).order_by(*order).offset(offset).limit(limit)
        )
        chosen = self._session.scalars(keys).all()
        return self._session.scalars(select(JobRow).where(JobRow.key.in_(chosen)).order_by(*order)).all()

    def projects(self, keys: Iterable[int]) -> dict[int, str]:
        """The project of each of these jobs."""
        rows = self._session.execute(select(JobRow.key, JobRow.project).where(JobRow.key.in_(list(keys))))
        return {key: project for key, project in rows}  # noqa: C416 - rows are tuples by name

    def names(self, keys: Iterable[int]) -> dict[int, tuple[str, str]]:
        """The project and the id of each of these jobs."""
        wanted = JobRow.key.in_(list(keys))
        rows = self._session.execute(select(JobRow.key, JobRow.project, JobRow.job_id).where(wanted))
        return {key: (project, job_id) for key, project, job_id in rows}

    def job_counts(self) -> dict[JobState, int]:
        rows = self._session.execute(select(JobRow.state, func.count()).group_by(JobRow.state))
        return {state: count for state, count in rows}  # noqa: C416 - rows are tuples by name

    def run(self, run_id: str) -> RunRow | None:
        return self._session.get(RunRow, run_id)

    def runs(self, job_key: int) -> Sequence[RunRow]:
        return self._session.scalars(select(RunRow).filter_by(job_key=job_key).order_by(RunRow.number)).all()

    def live_run(self, job_key: int) -> RunRow | None:
        return self._session.scalar(
            select(RunRow).where(RunRow.job_key == job_key, RunRow.state.in_(LIVE_RUNS))
        )

    def live_runs(self, agent_id: str | None = None) -> Sequence[RunRow]:
        """All runs that are not over, or those of one agent, in a fixed order."""
        query = select(RunRow).where(RunRow.state.in_(LIVE_RUNS)).order_by(RunRow.created_at, RunRow.run_id)
        if agent_id is not None:
            query = query.where(RunRow.agent_id == agent_id)
        return self._session.scalars(query).all()

    def replicas(self, run_ids: Iterable[str]) -> Sequence[ReplicaRow]:
        """The replicas of some runs, each gang in its own order."""
        return self._session.scalars(
            select(ReplicaRow).where(ReplicaRow.run_id.in_(list(run_ids))).order_by(ReplicaRow.position)
        ).all()

    def replica(self, run_id: str, task: str) -> ReplicaRow | None:
        return self._session.get(ReplicaRow, (run_id, task))

    def digests(self, run_ids: Iterable[str]) -> dict[tuple[str, str], Mapping[str, Any]]:
        """What the replicas of some runs have measured, by run and task, as `digests.Digest` keeps it; those that have
        measured something."""
        rows = self._session.execute(
            select(ReplicaRow.run_id, ReplicaRow.task, ReplicaRow.metrics).where(
                ReplicaRow.run_id.in_(list(run_ids)), ReplicaRow.metrics.is_not(None)
            )
        )
        return {(run_id, task): metrics for run_id, task, metrics in rows}

    def events(self, job_key: int) -> Sequence[EventRow]:
        return self._session.scalars(
            select(EventRow).filter_by(job_key=job_key).order_by(EventRow.number)
        ).all()

    def service_lines(self, job_key: int, skip: int) -> Sequence[EventRow]:
        """The events that are lines of the service's log, without the first `skip` of them."""
        return self._session.scalars(
            select(EventRow)
            .where(EventRow.job_key == job_key, EventRow.message != "")
            .order_by(EventRow.number)
            .offset(skip)
        ).all()

    def agents(self) -> Sequence[AgentRow]:
        return self._session.scalars(select(AgentRow).order_by(AgentRow.first_seen, AgentRow.agent_id)).all()

    def agent(self, agent_id: str) -> AgentRow | None:
        return self._session.get(AgentRow, agent_id)

    def lease(self, name: str) -> LeaseRow | None:
        return self._session.get(LeaseRow, name)

    def installation(self) -> str:
        """The id of the data directory that belongs to this database; "" where none has been told."""
        return self._session.scalar(select(InstallationRow.installation_id)) or ""


class Writer(Reader):
    def add_job(self, job: JobRow, now: datetime, events: Iterable[Event]) -> None:
        """A new job in QUEUED. The caller has made sure that its id is free."""
        self._session.add(job)
        self._session.flush()
        self._add_labels(job)
        for one in events:
            self.add_event(job.key, one, now)

    def add_run(
        self, job: JobRow, agent_id: str, assignments: Iterable[Assignment], now: datetime, message: str
    ) -> RunRow:
        """A new run in PREPARING, which takes the job there too."""
        number = 1 + (self._session.scalar(select(func.max(RunRow.number)).filter_by(job_key=job.key)) or 0)
        run = RunRow(
            run_id=uuid.uuid4().hex,
            job_key=job.key,
            number=number,
            agent_id=agent_id,
            state=RunState.PREPARING,
            created_at=now,
        )
        self._session.add(run)
        self._session.flush()
        self._session.add_all(
            ReplicaRow(
                run_id=run.run_id,
                task=assignment.task,
                position=position,
                state=ReplicaState.PENDING,
                machine_type=assignment.machine_type,
                cpus=list(assignment.cpus),
                gpus=list(assignment.gpus),
                memory_bytes=assignment.memory_bytes,
            )
            for position, assignment in enumerate(assignments)
        )
        self._session.flush()
        self.move_job(
            job,
            JobState.PREPARING,
            now,
            message,
            run=number,
            waiting="",
            waiting_kind="",
            position=0,
            not_before=None,
        )
        return run

    def move_job(
        self,
        job: JobRow,
        after: JobState,
        now: datetime,
        message: str = "",
        *,
        run: int | None = None,
        **values: Any,
    ) -> None:
        before = job.state
        check_move(JOB_MOVES, before, after)
        guard = update(JobRow).where(JobRow.key == job.key, JobRow.state == before)
        self._guarded(guard.values(state=after, **values))
        self._session.refresh(job)
        self._add_event(job.key, now, "job", message, run, before=before, after=after)

    def move_run(self, run: RunRow, after: RunState, now: datetime, message: str = "", **values: Any) -> None:
        before = run.state
        check_move(RUN_MOVES, before, after)
        guard = update(RunRow).where(RunRow.run_id == run.run_id, RunRow.state == before)
        self._guarded(guard.values(state=after, **values))
        self._session.refresh(run)
        self._add_event(run.job_key, now, "run", message, run.number, before=before, after=after)

    def change_replica(self, run: RunRow, change: ReplicaChange, now: datetime) -> None:
        """Applies what was observed: a move with its event, or a mere detail (an address) without one."""
        moves = change.before is not change.after
        if moves:
            check_move(REPLICA_MOVES, change.before, change.after)
        values: dict[str, Any] = {
            "state": change.after,
            "address": change.address,
            "started_at": change.started_at,
        }
        if change.exit is not None:
            values |= {
                "finished_at": change.exit.finished_at,
                "exit_code": change.exit.code,
                "reason": change.exit.reason,
                "message": change.exit.message,
                "after_stop": change.exit.after_stop,
            }
        self._guarded(
            update(ReplicaRow)
            .where(
                ReplicaRow.run_id == run.run_id,
                ReplicaRow.task == change.task,
                ReplicaRow.state == change.before,
            )
            .values(**values)
        )
        if moves:
            self._add_event(
                run.job_key,
                now,
                "replica",
                change.message,
                run.number,
                change.task,
                change.before,
                change.after,
            )

    def complete_log(
        self,
        run: RunRow,
        task: str,
        now: datetime,
        event: Event | None = None,
        *,
        end: LogEnd | None = None,
        kept: int | None = None,
    ) -> None:
        """No more lines come for the replica: `end` is its agent's last word, `kept` how many lines a quota left of it.
        Does nothing the second time."""
        values: dict[str, object] = {"log_complete": True, "log_kept": kept}
        if end is not None:
            values |= {"log_lines": end.count, "log_sha256": end.sha256}
        result = self._session.execute(
            update(ReplicaRow)
            .where(
                ReplicaRow.run_id == run.run_id, ReplicaRow.task == task, ReplicaRow.log_complete.is_(False)
            )
            .values(**values)
        )
        if _rows(result) and event is not None:
            self.add_event(run.job_key, event, now)

    def note_steps(self, run_id: str, task: str, values: Mapping[str, Any], *, complete: bool) -> None:
        """How far a replica is. Once its log is complete only what is `complete` counts, never what comes late."""
        if not complete and values.get("first_step") is not None:
            values = {**values, "first_step": func.coalesce(ReplicaRow.first_step, values["first_step"])}
        statement = update(ReplicaRow).where(ReplicaRow.run_id == run_id, ReplicaRow.task == task)
        if not complete:
            statement = statement.where(ReplicaRow.log_complete.is_(False))
            # Another process may know of what this one has not seen: a checkpoint of earlier, say.
            values = {name: value for name, value in values.items() if value is not None}
        if values:
            self._session.execute(statement.values(**values).execution_options(synchronize_session=False))

    def note_stall(self, run: RunRow, task: str, stall: Stall | None, stacks: str) -> None:
        """A replica stands still, or moves on (None). `stacks` "": nothing is known, what was known stays."""
        values: dict[str, Any] = {"stall": stall.model_dump(mode="json") if stall else None}
        if stacks:
            values["stacks"] = stacks
        self._session.execute(
            update(ReplicaRow)
            .where(ReplicaRow.run_id == run.run_id, ReplicaRow.task == task)
            .values(**values)
            .execution_options(synchronize_session=False)
        )

    def note_run(self, run: RunRow, activity: str, now: datetime, events: Iterable[Event]) -> None:
        """What a run is doing just now, and what of that is news; its agent knows it by now."""
        self._session.execute(
            update(RunRow).where(RunRow.run_id == run.run_id).values(activity=activity, acknowledged=True)
        )
        for news in events:
            self.add_event(run.job_key, news, now)

    def note_waiting(self, notes: Mapping[int, Waiting]) -> None:
        """What each queued job waits for. It changes with every job ahead, so it is not itself an event."""
        statement = (
            update(JobRow.__table__)  # type: ignore[arg-type]
            .where(JobRow.key == bindparam("job_key"), JobRow.state == JobState.QUEUED)
            .values(waiting_kind=bindparam("kind"), waiting=bindparam("reason"), position=bindparam("place"))
        )
        rows = [
            {"job_key": key, "kind": why.kind, "reason": why.reason, "place": why.position}
            for key, why in notes.items()
        ]
        if rows:
            self._session.connection().execute(statement, rows)

    def set_labels(self, job: JobRow, labels: dict[str, str], now: datetime) -> None:
        """Replaces the labels, if nobody else has since they were read."""
        guard = update(JobRow).where(JobRow.key == job.key, JobRow.revision == job.revision)
        self._guarded(guard.values(labels=labels, revision=job.revision + 1))
        self._session.refresh(job)
        self._session.execute(delete(JobLabelRow).where(JobLabelRow.job_key == job.key))
        self._add_labels(job)
        self.add_event(job.key, Event("labels"), now)

    def save_agent(self, info: AgentInfo, leftovers: Sequence[str], now: datetime) -> None:
        """The agent was heard of. `leftovers`: runs that are over, and of which something lives there."""
        row = self.agent(info.agent_id)
        if row is None:
            row = AgentRow(agent_id=info.agent_id, first_seen=now, heard=0, sent_version="")
            self._session.add(row)
        row.info = info.model_dump(mode="json")
        row.leftovers = list(leftovers)
        row.heard += 1
        row.last_seen = now
        self._session.flush()

    def answer_agent(self, agent: AgentRow, version: str, lease_s: float | None, now: datetime) -> None:
        """The agent is being sent an answer, with this lease in it."""
        agent.sent_version, agent.sent_lease_s = version, lease_s
        agent.heard += 1
        agent.last_seen = now
        self._session.flush()

    def grant_lease(self, agent: AgentRow, lease_s: float | None) -> None:
        """The agent may be silent for `lease_s` (None: for ever)."""
        agent.lease_s = lease_s
        self._session.flush()

    def take_lease(self, name: str, holder: str, ttl_s: float, before: LeaseRow | None) -> bool:
        """Takes the lease, or keeps it, if it still is as it was read; whether it is the holder's now."""
        lease = self._session.get(LeaseRow, name)
        if lease is None:
            self._session.add(LeaseRow(name=name, holder=holder, beat=1, ttl_s=ttl_s))
        elif before is not None and (lease.holder, lease.beat) == (before.holder, before.beat):
            lease.holder, lease.beat, lease.ttl_s = holder, lease.beat + 1, ttl_s
        else:
            return False
        self._session.flush()
        return True

    def drop_lease(self, name: str, holder: str) -> None:
        """Nobody holds it any more; does nothing where another does."""
        self._session.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.holder == holder))

    def set_installation(self, installation_id: str) -> None:
        self._session.add(InstallationRow(installation_id=installation_id))
        self._session.flush()

    def add_event(self, job_key: int, one: Event, now: datetime) -> None:
        self._add_event(job_key, now, one.kind, one.message, one.run, one.task)

    def _add_labels(self, job: JobRow) -> None:
        labels = job.labels.items()
        self._session.add_all(JobLabelRow(job_key=job.key, name=name, value=value) for name, value in labels)
        self._session.flush()

    def _add_event(
        self,
        job_key: int,
        now: datetime,
        kind: str,
        message: str,
        run: int | None,
        task: str = "",
        before: str = "",
        after: str = "",
    ) -> None:
        last = self._session.scalar(select(func.max(EventRow.number)).filter_by(job_key=job_key))
        self._session.add(
            EventRow(
                job_key=job_key,
                number=(last or 0) + 1,
                time=now,
                kind=kind,
                message=" ".join(message.split()),
                run=run,
                task=task,
                before=before,
                after=after,
            )
        )
        self._session.flush()

    def _guarded(self, statement: Update) -> None:
        result = self._session.execute(statement.execution_options(synchronize_session=False))
        if _rows(result) != 1:
            raise Overtaken


def _rows(result: Any) -> int:
    return result.rowcount if isinstance(result, CursorResult) else 0
