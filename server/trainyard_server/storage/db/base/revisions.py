"""Revisions: what has changed since somebody last looked.

A write transaction that changes a job, its run or an agent gets the next number, which these rows then have in
`changed`.
One writer at a time makes the numbers those of the commits, for all servers on a database.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar, cast

from sqlalchemy import Connection, Table, bindparam, func, select, update

from trainyard_protocol.states import JobState
from trainyard_server.storage.db.base.agent_models import AgentRow, RevisionRow
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow, StudyRow
from trainyard_server.storage.db.queries.reader import LIVE_RUNS, UNFINISHED_JOBS, Reader, Revision

_Key = TypeVar("_Key", int, str)
_TABLE = cast("Table", RevisionRow.__table__)
_REVISION = select(_TABLE.c.value, _TABLE.c.placed, _TABLE.c.noted, _TABLE.c.written)
_NEXT = update(_TABLE).values({name: bindparam(name) for name in ("value", "placed", "noted", "written")})
_JOBS, _AGENTS = cast("Table", JobRow.__table__), cast("Table", AgentRow.__table__)
_JOB_CHANGED = update(_JOBS).where(_JOBS.c.key == bindparam("row")).values(changed=bindparam("at"))
_AGENT_CHANGED = update(_AGENTS).where(_AGENTS.c.agent_id == bindparam("row")).values(changed=bindparam("at"))
_MANY = 500
"""Keys in one query. For more, all rows that can matter are read."""


@dataclass(slots=True)
class Changes:
    """Changes of a write transaction. `wrote`: a live row. `revision`: the one that it made, once it is recorded."""

    jobs: set[int] = field(default_factory=set)
    agents: set[str] = field(default_factory=set)
    placed: bool = False
    noted: bool = False
    wrote: bool = False
    revision: Revision | None = None

    def next(self, before: Revision, *, counts_writes: bool) -> Revision:
        """The revision that these changes make; without changes it is the one before. `counts_writes`: others have to
        see that rows were written of which they may know the old values."""
        changed = bool(self.jobs or self.agents)
        wrote = counts_writes and (changed or self.noted or self.wrote)
        value = before.value + changed
        placed = value if self.placed else before.placed
        self.revision = Revision(value, placed, before.noted + self.noted, before.written + wrote)
        return self.revision

    def record(self, connection: Connection, revision: Revision) -> None:
        """Write the revision, in the transaction that makes the changes, for other processes."""
        connection.execute(_NEXT, revision._asdict())
        if self.jobs:
            connection.execute(_JOB_CHANGED, [{"at": revision.value, "row": key} for key in sorted(self.jobs)])
        if self.agents:
            agents = [{"at": revision.value, "row": agent_id} for agent_id in sorted(self.agents)]
            connection.execute(_AGENT_CHANGED, agents)


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
    return reader.known_revision() or read(reader.session.connection())


def read(connection: Connection) -> Revision:
    """The revision that is in the database."""
    return Revision(*connection.execute(_REVISION).one())


def unfinished_count(reader: Reader) -> int:
    """The number of jobs that have not ended, studies among them."""
    query = select(func.count()).select_from(JobRow).where(JobRow.state.in_(UNFINISHED_JOBS))
    return reader.session.scalar(query) or 0


class KnownChanges(NamedTuple):
    """Jobs and agents that have changed, and the keys of jobs that were deleted."""

    jobs: Sequence[ChangedJob]
    agents: Sequence[AgentRow]
    deleted: Sequence[int]


def known_changes(reader: Reader, since: int) -> KnownChanges | None:
    """The changes since a revision, if that needs no query."""
    changes = reader.changes_since(since)
    if changes is None:
        return None
    keys, agent_ids = changes
    jobs = {key: job for key in sorted(keys) if (job := reader.find_job(key)) is not None}
    agents = [agent for agent_id in sorted(agent_ids) if (agent := reader.agent(agent_id)) is not None]
    return KnownChanges([_changed_job(reader, job) for job in jobs.values()], agents, sorted(keys - jobs.keys()))


def _changed_job(reader: Reader, job: JobRow) -> ChangedJob:
    run = reader.live_run(job.key) if job.state in UNFINISHED_JOBS else None
    parts = () if run is None else [(part, reader.replicas([part.run_id])) for part in reader.parts(run)]
    return ChangedJob(job, job.is_study, parts)


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
