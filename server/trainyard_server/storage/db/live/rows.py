"""Rows of live jobs and of agents in memory, as the last commit left them.

Transactions that write come one after the other. Each works on copies of the rows that it needs (`LiveTransaction`),
and its statements write the same values into the database. After its commit the copies take the place of what was
here; after a rollback they are forgotten. What is here is never changed, so threads may read it without a lock.

The rows are objects of the tables' classes that belong to no session.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import manager_of_class

from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.columns import Table
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import LIVE_RUNS, Revision, ServiceLine

_R = TypeVar("_R", bound=Table)

_MOST_REVISIONS = 1_000
_MOST_JOBS = 1_000
"""About the most jobs without a live run that are kept."""


@dataclass(slots=True)
class LiveJob:
    """A job with its runs, in their order, and the replicas of each, in theirs."""

    row: JobRow
    runs: list[RunRow] = field(default_factory=list)
    replicas: dict[str, list[ReplicaRow]] = field(default_factory=dict)
    last_event: int | None = None
    """The number of its newest event; None: it is not read."""
    lines: tuple[ServiceLine, ...] | None = None
    """Its events that are lines of the service's log; None: they are not read."""

    shared: frozenset[str] = frozenset()
    """The runs whose rows are those that others read."""

    def copy(self, shared: Iterable[str]) -> "LiveJob":
        """A job of a transaction's own, but for the rows of some runs."""
        kept = frozenset(shared)
        runs = [run if run.run_id in kept else copied(run) for run in self.runs]
        replicas = {
            run_id: rows if run_id in kept else list(map(copied, rows)) for run_id, rows in self.replicas.items()
        }
        return LiveJob(copied(self.row), runs, replicas, self.last_event, self.lines, kept)

    def own(self, run_id: str) -> None:
        """Let the transaction have rows of its own of this run."""
        if run_id in self.shared:
            self.runs = [copied(run) if run.run_id == run_id else run for run in self.runs]
            self.replicas[run_id] = list(map(copied, self.replicas[run_id]))
            self.shared -= {run_id}

    def ended(self) -> Iterable[str]:
        """The runs that have ended, of which there may be many, and of which few rows change."""
        return (run.run_id for run in self.runs if run.state not in LIVE_RUNS)

    def agents(self) -> frozenset[str]:
        """The agents of its live runs."""
        return frozenset(run.agent_id for run in self.runs if run.state in LIVE_RUNS)


class LiveRows:
    """The rows in memory. Only a transaction that writes adds to them, after its commit."""

    def __init__(self) -> None:
        self.jobs: dict[int, LiveJob] = {}
        self.job_of_run: dict[str, int] = {}
        self.agents: Mapping[str, AgentRow] | None = None
        """All agents; None: they are not read."""
        self.on_agent: dict[str, frozenset[int]] = {}
        """The jobs with live runs on each agent, once the agents are read."""
        self.revision: Revision | None = None
        """That of the last commit; None: it is to be read."""
        self._changed: deque[tuple[int, frozenset[int], frozenset[str]]] = deque(maxlen=_MOST_REVISIONS)
        """The jobs and the agents of the last revisions."""
        self._trim_at = _MOST_JOBS

    def forget(self) -> None:
        """Forget everything: another process has written."""
        self.jobs, self.job_of_run, self.agents, self.on_agent = {}, {}, None, {}
        self._changed.clear()

    def note_changes(self, revision: Revision, jobs: Iterable[int], agents: Iterable[str]) -> None:
        """Remember what a commit has changed."""
        if self.revision is None or revision.value != self.revision.value:
            self._changed.append((revision.value, frozenset(jobs), frozenset(agents)))
        self.revision = revision

    def changes_since(self, value: int) -> tuple[set[int], set[str]] | None:
        """The jobs and the agents that have changed since a revision; None where that was too long ago."""
        changed = list(self._changed)
        if self.revision is None or (self.revision.value > value and (not changed or changed[0][0] > value + 1)):
            return None
        newer = [(jobs, agents) for at, jobs, agents in changed if at > value]
        return set[int]().union(*(jobs for jobs, _ in newer)), set[str]().union(*(agents for _, agents in newer))

    def known_job(self, key: int) -> LiveJob | None:
        return self.jobs.get(key)

    job = known_job

    def known_job_of_run(self, run_id: str) -> LiveJob | None:
        key = self.job_of_run.get(run_id)
        return None if key is None else self.jobs.get(key)

    def jobs_on(self, agent_id: str) -> Iterable[int]:
        return self.on_agent.get(agent_id, frozenset())

    def busy_agents(self) -> Iterable[str]:
        """The agents with live runs."""
        return [agent_id for agent_id, keys in list(self.on_agent.items()) if keys]

    def agent(self, agent_id: str) -> AgentRow | None:
        return (self.agents or {}).get(agent_id)

    def all_agents(self) -> Sequence[AgentRow]:
        return list((self.agents or {}).values())

    def replace(self, key: int, job: LiveJob | None) -> None:
        """Let a job be what a transaction has committed; None: it was deleted."""
        before = self.jobs.pop(key, None)
        runs = [run for which in (before, job) if which is not None for run in which.runs]
        is_on = frozenset[str]() if job is None else job.agents()
        for agent_id in {run.agent_id for run in runs}:
            there = self.on_agent.get(agent_id, frozenset())
            self.on_agent[agent_id] = there | {key} if agent_id in is_on else there - {key}
        for run in runs:
            self.job_of_run.pop(run.run_id, None)
        if job is None:
            return
        self.jobs[key] = job
        for run in job.runs:
            self.job_of_run[run.run_id] = key

    def trim(self) -> None:
        """Forget jobs without live runs, those first that were written longest ago, where there are many."""
        if len(self.jobs) < self._trim_at:
            return
        idle = [key for key, job in self.jobs.items() if not job.agents()]
        for key in idle[: max(0, len(idle) - _MOST_JOBS // 2)]:
            self.replace(key, None)
        self._trim_at = len(self.jobs) + _MOST_JOBS // 2


class LiveTransaction:
    """The live rows for one transaction that writes: copies of its own, which it may change (`LiveJob.own`)."""

    def __init__(self, rows: LiveRows, session: Session, revision: Revision) -> None:
        self.revision: Revision | None = revision
        """That before the transaction."""
        self._rows = rows
        self._session = session
        self._jobs: dict[int, LiveJob | None] = {}
        self._job_of_run: dict[str, int] = {}
        self._agents: dict[str, AgentRow] = {}

    def begin(self) -> None:
        """Read the agents and which jobs run there, if that is not known."""
        if self._rows.agents is not None:
            return
        agents = self._session.scalars(select(AgentRow)).all()
        live = select(RunRow.agent_id, RunRow.job_key).where(RunRow.state.in_(LIVE_RUNS))
        on_agent: dict[str, set[int]] = {}
        for agent_id, key in self._session.execute(live):
            on_agent.setdefault(agent_id, set()).add(key)
        self._rows.on_agent = {agent_id: frozenset(keys) for agent_id, keys in on_agent.items()}
        self._rows.agents = {row.agent_id: self._taken(row) for row in agents}

    def job(self, key: int) -> LiveJob | None:
        if key in self._jobs:
            return self._jobs[key]
        committed = self._rows.jobs.get(key)
        job = self._read(key) if committed is None else committed.copy(committed.ended())
        if job is not None:
            self.add(job)
        return job

    def known_job(self, key: int) -> LiveJob | None:
        """The job, if that needs no read."""
        return self.job(key) if key in self._jobs or key in self._rows.jobs else None

    def add(self, job: LiveJob) -> None:
        self._jobs[job.row.key] = job
        for run in job.runs:
            self._job_of_run[run.run_id] = job.row.key

    def add_run(self, run: RunRow) -> None:
        job = self.job(run.job_key)
        assert job is not None
        job.runs.append(run)
        job.replicas[run.run_id] = []
        self._job_of_run[run.run_id] = run.job_key

    def delete(self, key: int) -> None:
        self._jobs[key] = None

    def known_job_of_run(self, run_id: str) -> LiveJob | None:
        """The job of a run, if that needs no read."""
        key = self._job_of_run.get(run_id, self._rows.job_of_run.get(run_id))
        return None if key is None else self.job(key)

    def jobs_on(self, agent_id: str) -> Iterable[int]:
        """The jobs that may have live runs on the agent."""
        return self._rows.on_agent.get(agent_id, frozenset()) | self._jobs.keys()

    def busy_agents(self) -> Iterable[str]:
        """The agents that may have live runs."""
        changed = [job.agents() for job in self._jobs.values() if job is not None]
        return frozenset(self._rows.busy_agents()).union(*changed)

    def agent(self, agent_id: str) -> AgentRow | None:
        own = self._agents.get(agent_id)
        if own is None:
            assert self._rows.agents is not None
            committed = self._rows.agents.get(agent_id)
            if committed is None:
                return None
            own = self._agents[agent_id] = copied(committed)
        return own

    def is_shared(self, row: Table) -> bool:
        """Whether the row is one that others read: of an agent or a run."""
        if isinstance(row, AgentRow):
            return (self._rows.agents or {}).get(row.agent_id) is row
        committed = self._rows.jobs.get(row.job_key) if isinstance(row, RunRow) else None
        return committed is not None and any(run is row for run in committed.runs)

    def add_agent(self, row: AgentRow) -> None:
        self._agents[row.agent_id] = row

    def all_agents(self) -> Sequence[AgentRow]:
        """Every agent, to be read: those that `agent` has returned are the transaction's own."""
        assert self._rows.agents is not None
        return list({**self._rows.agents, **self._agents}.values())

    def saved(self) -> Callable[[], None]:
        """Remember what is here now; the result restores it, after the rollback of a savepoint."""
        jobs = {key: None if job is None else job.copy(job.shared) for key, job in self._jobs.items()}
        agents = {agent_id: copied(row) for agent_id, row in self._agents.items()}
        job_of_run = dict(self._job_of_run)

        def restore() -> None:
            self._jobs, self._agents, self._job_of_run = jobs, agents, job_of_run

        return restore

    def changes_since(self, value: int) -> tuple[set[int], set[str]] | None:
        return self._rows.changes_since(value)

    def changed_at(self, value: int, jobs: Iterable[int], agents: Iterable[str]) -> None:
        """Let rows have the revision at which they were changed."""
        for key in jobs:
            if (job := self.job(key)) is not None:
                job.row.changed = value
        for agent_id in agents:
            if (row := self.agent(agent_id)) is not None:
                row.changed = value

    def committed(self, revision: Revision, jobs: Iterable[int], agents: Iterable[str]) -> None:
        """Take over what the transaction has committed, with what it has changed."""
        for key, job in self._jobs.items():
            self._rows.replace(key, job)
        if self._agents:
            self._rows.agents = {**(self._rows.agents or {}), **self._agents}
        self._rows.trim()
        deleted = (key for key, job in self._jobs.items() if job is None)
        self._rows.note_changes(revision, {*jobs, *deleted}, agents)

    def _read(self, key: int) -> LiveJob | None:
        row = self._session.get(JobRow, key)
        if row is None:
            return None
        runs = self._session.scalars(select(RunRow).filter_by(job_key=key).order_by(RunRow.number, RunRow.run_id)).all()
        replicas: dict[str, list[ReplicaRow]] = {run.run_id: [] for run in runs}
        query = select(ReplicaRow).where(ReplicaRow.run_id.in_(list(replicas))).order_by(ReplicaRow.position)
        for replica in self._session.scalars(query).all() if replicas else ():
            replicas[replica.run_id].append(self._taken(replica))
        return LiveJob(self._taken(row), list(map(self._taken, runs)), replicas)

    def _taken(self, row: _R) -> _R:
        """A copy of a row of the session, which does not know it any more: it would not learn of changes."""
        self._session.expunge(row)
        return copied(row)


def copied(row: _R) -> _R:
    """A row with the same values, which belongs to no session."""
    values = dict(row.__dict__)
    del values["_sa_instance_state"]
    new: _R = manager_of_class(type(row)).new_instance()
    new.__dict__.update(values)
    return new
