"""Reads of the repository: rows in one consistent view of the database."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Text, cast, func, select
from sqlalchemy.orm import Session

from trainyard_protocol.states import FINAL_JOB_STATES, RUN_MOVES, JobState
from trainyard_server.storage.db.job_inputs import JobInput, JobInputs
from trainyard_server.storage.db.models import (
    AgentRow,
    DeletedJobRow,
    EventRow,
    InstallationRow,
    JobRow,
    LeaseRow,
    ReplicaRow,
    RunRow,
)

LIVE_RUNS = tuple(state for state, moves in RUN_MOVES.items() if moves)
"""States of runs that have not ended."""

PAGE_BYTES = 4 * 2**20
"""Characters of the configs on a page of jobs."""


class JobEnd(NamedTuple):
    """The columns of a job that its retention depends on."""

    key: int
    project: str
    job_id: str
    state: JobState
    ended_at: datetime | None
    log_removed_at: datetime | None


class RemovalCounts(NamedTuple):
    """Number of deleted jobs and of removed logs, and the time of the last removal."""

    jobs: int
    logs: int
    last: datetime | None


class Reader:
    def __init__(self, session: Session, inputs: JobInputs) -> None:
        self._session = session
        self._inputs = inputs

    @property
    def session(self) -> Session:
        """The session, for queries of other modules, such as `job_queries`."""
        return self._session

    def job(self, project: str, job_id: str) -> JobRow | None:
        return self._session.scalar(select(JobRow).filter_by(project=project, job_id=job_id))

    def find_job(self, key: int) -> JobRow | None:
        """The job with that key, unless it was deleted."""
        return self._session.get(JobRow, key)

    def deleted_job(self, project: str, job_id: str) -> DeletedJobRow | None:
        return self._session.scalar(select(DeletedJobRow).filter_by(project=project, job_id=job_id))

    def jobs_above(self, key: int, limit: int) -> Sequence[JobEnd]:
        """The first jobs of all projects whose key is above `key`, by key."""
        columns = [getattr(JobRow, name) for name in JobEnd._fields]
        query = select(*columns).where(JobRow.key > key).order_by(JobRow.key).limit(limit)
        return [JobEnd(*row) for row in self._session.execute(query)]

    def orphaned_jobs(self) -> set[int]:
        """The keys of jobs of which processes still run, although their run has ended."""
        runs = [run for agent in self.agents() for run in agent.orphaned_runs]
        if not runs:
            return set()
        return set(self._session.scalars(select(RunRow.job_key).where(RunRow.run_id.in_(runs))))

    def removal_counts(self, by: str) -> RemovalCounts:
        """The jobs that `by` has deleted, and all removed logs."""
        of_jobs = select(func.count(), func.max(DeletedJobRow.deleted_at)).where(
            DeletedJobRow.deleted_by == by
        )
        of_logs = select(func.count(JobRow.log_removed_at), func.max(JobRow.log_removed_at))
        jobs, last_job = self._session.execute(of_jobs).one()
        logs, last_log = self._session.execute(of_logs).one()
        return RemovalCounts(jobs, logs, max(filter(None, (last_job, last_log)), default=None))

    def is_used(self, project: str, job_id: str) -> bool:
        """Whether the project has, or has ever had, a job with that id."""
        return self.job(project, job_id) is not None or self.deleted_job(project, job_id) is not None

    def job_by_key(self, key: int) -> JobRow:
        return self._session.get_one(JobRow, key)

    def job_input(self, job: JobRow) -> JobInput:
        """The job's training input and gang. Raises InvalidArgument or KeyError for a row that cannot be parsed."""
        return self._inputs.of(job)

    def jobs(
        self, project: str, condition: ColumnElement[bool] | None, below: int | None, limit: int
    ) -> tuple[Sequence[JobRow], bool]:
        """The project's jobs, the newest first, from the first whose key is below `below`, and whether there are more:
        at most `limit`, and at most PAGE_BYTES of their configs unless one alone is larger."""
        size = func.length(cast(JobRow.training_input, Text)) + func.length(cast(JobRow.gang, Text))
        query = select(JobRow.key, size).where(JobRow.project == project).order_by(JobRow.key.desc())
        if condition is not None:
            query = query.where(condition)
        if below is not None:
            query = query.where(JobRow.key < below)
        sizes = self._session.execute(query.limit(limit + 1)).all()
        totals = accumulate(size for _, size in sizes)
        keys = [key for (key, _), total in zip(sizes, totals, strict=True) if total <= PAGE_BYTES][:limit]
        keys = keys or [key for key, _ in sizes[:1]]
        rows = select(JobRow).where(JobRow.key.in_(keys)).order_by(JobRow.key.desc())
        return self._session.scalars(rows).all(), len(keys) < len(sizes)

    def unfinished(self) -> Sequence[JobRow]:
        """All jobs that have not ended, the oldest first."""
        return self._session.scalars(
            select(JobRow).where(JobRow.state.not_in(FINAL_JOB_STATES)).order_by(JobRow.key)
        ).all()

    def queued(self) -> Sequence[JobRow]:
        return self._session.scalars(select(JobRow).filter_by(state=JobState.QUEUED)).all()

    def projects(self, keys: Iterable[int]) -> dict[int, str]:
        """The project of each of these jobs."""
        rows = self._session.execute(select(JobRow.key, JobRow.project).where(JobRow.key.in_(list(keys))))
        return {key: project for key, project in rows}  # noqa: C416 - rows are tuples by name

    def names(self, keys: Iterable[int]) -> dict[int, tuple[str, str]]:
        """The project and the id of each of these jobs."""
        chosen = JobRow.key.in_(list(keys))
        rows = self._session.execute(select(JobRow.key, JobRow.project, JobRow.job_id).where(chosen))
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
        """All runs that have not ended, or those of one agent, in a fixed order."""
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
        """Metrics of the replicas of some runs, by run and task, in the form of `CurveSummary.json`."""
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
        """The id of the data directory that belongs to this database; "" if none is set."""
        return self._session.scalar(select(InstallationRow.installation_id)) or ""
