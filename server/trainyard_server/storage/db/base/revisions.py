"""Revisions: what has changed since somebody last looked.

A write transaction that changes a job, its run or an agent gets the next number, which these rows then have in
`changed`.
One writer at a time makes the numbers those of the commits, for all servers on a database.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeVar, cast

from sqlalchemy import Table, func, select, update
from sqlalchemy.orm import Session

from trainyard_protocol.states import JobState
from trainyard_server.storage.db.base.agent_models import AgentRow, RevisionRow
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow, StudyRow
from trainyard_server.storage.db.queries.reader import LIVE_RUNS, UNFINISHED_JOBS, Reader

_Key = TypeVar("_Key", int, str)
_TABLE = cast("Table", RevisionRow.__table__)
_REVISION = select(_TABLE.c.value, _TABLE.c.placed, _TABLE.c.noted)
_NEXT = update(_TABLE)
_MANY = 500
"""Keys in one query. For more, all rows that can matter are read."""


class Revision(NamedTuple):
    """The number of the last change, and of the last creation of a run; and how often reasons to wait were written."""

    value: int = 0
    placed: int = 0
    noted: int = 0


@dataclass(slots=True)
class Changes:
    """Changes of a write transaction. `revision`: the one that it made, once it is recorded."""

    jobs: set[int] = field(default_factory=set)
    agents: set[str] = field(default_factory=set)
    placed: bool = False
    noted: bool = False
    revision: Revision | None = None

    def record(self, session: Session) -> None:
        """Make the next revision, in the transaction that makes the changes."""
        changed = bool(self.jobs or self.agents)
        if not (changed or self.noted):
            return
        before = Revision(*session.execute(_REVISION).one())
        value = before.value + changed
        self.revision = Revision(value, value if self.placed else before.placed, before.noted + self.noted)
        session.execute(_NEXT.values(**self.revision._asdict()))
        changed_by = [update(JobRow).where(JobRow.key.in_(part)) for part in _parts(sorted(self.jobs))]
        changed_by += [update(AgentRow).where(AgentRow.agent_id.in_(part)) for part in _parts(sorted(self.agents))]
        for statement in changed_by:
            session.execute(statement.values(changed=value).execution_options(synchronize_session=False))


class AgentHeartbeat(NamedTuple):
    """The columns of an agent that change with each of its calls."""

    agent_id: str
    heartbeats: int
    last_seen: datetime


class ChangedJob(NamedTuple):
    """A job with the live run of its gang, by parts."""

    job: JobRow
    is_study: bool
    parts: Sequence[tuple[RunRow, Sequence[ReplicaRow]]]


class WaitingNote(NamedTuple):
    """The recorded reason to wait of a queued job."""

    kind: str
    reason: str
    position: int


def current(reader: Reader) -> Revision:
    return Revision(*reader.session.execute(_REVISION).one())


def heartbeats(reader: Reader, agents: Sequence[str] | None = None) -> Sequence[AgentHeartbeat]:
    """The heartbeats of every agent, or of these."""
    query = select(AgentRow.agent_id, AgentRow.heartbeats, AgentRow.last_seen).where(AgentRow.removed_at.is_(None))
    if agents is not None:
        query = query.where(AgentRow.agent_id.in_(agents))
    return [AgentHeartbeat(*row) for row in reader.session.execute(query)]


def others_run(reader: Reader, agent_id: str) -> bool:
    """Whether an agent that is not removed, other than this one, has a live run."""
    query = (
        select(RunRow.run_id)
        .join(AgentRow, AgentRow.agent_id == RunRow.agent_id)
        .where(RunRow.state.in_(LIVE_RUNS), RunRow.agent_id != agent_id, AgentRow.removed_at.is_(None))
    )
    return reader.session.scalar(query.limit(1)) is not None


def unfinished_count(reader: Reader) -> int:
    """The number of jobs that have not ended, studies among them."""
    query = select(func.count()).select_from(JobRow).where(JobRow.state.in_(UNFINISHED_JOBS))
    return reader.session.scalar(query) or 0


def changed_jobs(reader: Reader, since: int | None) -> Sequence[ChangedJob]:
    """The jobs that have changed since a revision, ended ones too; without one all that have not ended."""
    query = select(JobRow, StudyRow.job_key).outerjoin(StudyRow, StudyRow.job_key == JobRow.key)
    chosen = JobRow.state.in_(UNFINISHED_JOBS) if since is None else JobRow.changed > since
    rows = reader.session.execute(query.where(chosen)).all()
    keys = [job.key for job, _ in rows if job.state in UNFINISHED_JOBS]
    live = select(RunRow).where(RunRow.state.in_(LIVE_RUNS), RunRow.beside.is_(None))
    if len(keys) <= _MANY:
        live = live.where(RunRow.job_key.in_(keys))
    runs = list(reader.session.scalars(live)) if keys else []
    gangs: dict[str, list[ReplicaRow]] = {}
    for part in _parts([run.run_id for run in runs]):
        gangs |= reader.replicas_by_run(part)
    parts: dict[int, list[tuple[RunRow, Sequence[ReplicaRow]]]] = {}
    for run in sorted(runs, key=lambda run: run.part_of is not None):
        parts.setdefault(run.job_key, []).append((run, gangs[run.run_id]))
    return [ChangedJob(job, study is not None, parts.get(job.key, ())) for job, study in rows]


def changed_agents(reader: Reader, since: int | None) -> Sequence[AgentRow]:
    """The agents that have changed since a revision, removed ones too; without one all."""
    query = select(AgentRow)
    return reader.session.scalars(query if since is None else query.where(AgentRow.changed > since)).all()


def waiting_notes(reader: Reader) -> dict[int, WaitingNote]:
    """The notes of all queued jobs, by key."""
    query = select(JobRow.key, JobRow.waiting_kind, JobRow.waiting, JobRow.position)
    rows = reader.session.execute(query.where(JobRow.state == JobState.QUEUED))
    return {key: WaitingNote(kind, reason, position) for key, kind, reason, position in rows}


def _parts(items: Sequence[_Key]) -> Iterator[Sequence[_Key]]:
    return (items[at : at + _MANY] for at in range(0, len(items), _MANY))
