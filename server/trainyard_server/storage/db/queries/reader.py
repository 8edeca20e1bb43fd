"""Reads of the repository: rows in one consistent view of the database."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Text, and_, bindparam, cast, func, literal, or_, select, union_all
from sqlalchemy.orm import Session

from trainyard_protocol.states import FINAL_JOB_STATES, RUN_MOVES, JobState, RunState
from trainyard_server.domain.access.permissions import Visible
from trainyard_server.storage.db.base.agent_models import AgentRow, InstallationRow, LeaseRow
from trainyard_server.storage.db.base.models import (
    HELD,
    IS_LOG_OPEN,
    DeletedJobRow,
    EventRow,
    JobLabelRow,
    JobRow,
    ReplicaRow,
    RunRow,
    StudyRow,
)
from trainyard_server.storage.db.queries.job_inputs import JobInput, JobInputs

UNFINISHED_JOBS = tuple(state for state in JobState if state not in FINAL_JOB_STATES)
"""States of jobs that have not ended, to find them by an index."""

LIVE_RUNS = tuple(state for state, moves in RUN_MOVES.items() if moves)
"""States of runs that have not ended."""

NO_STUDY = ~select(StudyRow.job_key).where(StudyRow.job_key == JobRow.key).exists()
"""Selects jobs that have runs: all but studies."""

Label = tuple[str, str | None]
"""Name and value of a label, or any value (None)."""

_MANY = 3_000
"""A label with at least so many jobs is common."""

PAGE_BYTES = 4 * 2**20
"""Characters of the configs on a page of jobs."""


class JobEnd(NamedTuple):
    """The columns of a job that its retention depends on."""

    key: int
    project: str
    job_id: str
    state: JobState
    ended_at: datetime | None
    study_key: int | None


class ServiceLine(NamedTuple):
    """An event that is a line of the service's log."""

    time: datetime
    message: str
    kind: str
    after: str


class Revision(NamedTuple):
    """The number of the last change, and of the last creation of a run; how often reasons to wait were written; and the
    number of the last transaction that wrote a live row, its heartbeat among them."""

    value: int = 0
    placed: int = 0
    noted: int = 0
    written: int = 0


class AgentHeartbeat(NamedTuple):
    """The columns of an agent that change with each of its calls."""

    agent_id: str
    heartbeats: int
    last_seen: datetime


class RemovalCounts(NamedTuple):
    """Number of deleted jobs, and the time of the last removal."""

    jobs: int
    last: datetime | None


def jobs_labelled(name: str, value: str | None) -> Select[int]:
    """The keys of the jobs with a label."""
    labelled = select(JobLabelRow.job_key).where(JobLabelRow.name == name)
    return labelled if value is None else labelled.where(JobLabelRow.value == value)


_USED_IDS = union_all(  # built once: it is asked with each submission
    *(
        select(row.job_id, literal(was_deleted)).where(
            row.project == bindparam("project"), row.job_id.in_(bindparam("job_ids", expanding=True))
        )
        for row, was_deleted in ((JobRow, 0), (DeletedJobRow, 1))
    )
)


class Reader:
    def __init__(self, session: Session, inputs: JobInputs) -> None:
        self._session = session
        self._inputs = inputs

    @property
    def session(self) -> Session:
        """The session, for queries of other modules, such as `job_queries`."""
        return self._session

    def job(self, project: str, job_id: str) -> JobRow | None:
        return self.session.scalar(select(JobRow).filter_by(project=project, job_id=job_id))

    def find_job(self, key: int) -> JobRow | None:
        """The job with that key, unless it was deleted."""
        return self.session.get(JobRow, key)

    def known_job(self, key: int) -> JobRow | None:  # noqa: ARG002 - a `LiveReader` knows some
        """The job with that key, if that needs no query."""
        return None

    def known_revision(self) -> Revision | None:
        """The revision, if that needs no query."""
        return None

    def changes_since(self, value: int) -> tuple[set[int], set[str]] | None:  # noqa: ARG002
        """The keys of the jobs, and the agents, that have changed since a revision, if that needs no query. Jobs that
        were deleted are among them."""
        return None

    def deleted_job(self, project: str, job_id: str) -> DeletedJobRow | None:
        return self.session.scalar(select(DeletedJobRow).filter_by(project=project, job_id=job_id))

    def used_ids(self, project: str, job_ids: Collection[str]) -> dict[str, bool]:
        """Which of these ids the project has ever had, and whether that job was deleted."""
        rows = self.session.execute(_USED_IDS, {"project": project, "job_ids": list(job_ids)})
        return {job_id: bool(was) for job_id, was in rows}

    def queued_jobs(self, project: str, owner: str, most: int) -> int:
        """The number of queued jobs of an owner in a project, without trials, at most `most`."""
        query = select(JobRow.key).filter_by(state=JobState.QUEUED, project=project, owner=owner, study_key=None)
        query = query.limit(most)
        return self.session.scalar(select(func.count()).select_from(query.subquery())) or 0

    def jobs_above(self, key: int, limit: int) -> Sequence[JobEnd]:
        """The first jobs of all projects whose key is above `key`, by key."""
        columns = [getattr(JobRow, name) for name in JobEnd._fields]
        query = select(*columns).where(JobRow.key > key).order_by(JobRow.key).limit(limit)
        return [JobEnd(*row) for row in self.session.execute(query)]

    def orphaned_jobs(self) -> set[int]:
        """The keys of jobs of which processes still run, although their run has ended."""
        runs = [run for agent in self.agents() for run in agent.orphaned_runs]
        if not runs:
            return set()
        return set(self.session.scalars(select(RunRow.job_key).where(RunRow.run_id.in_(runs))))

    def removal_counts(self, visible: Visible, by: str) -> RemovalCounts:
        """The jobs of visible projects that `by` has deleted, without trials."""
        query = select(func.count(), func.max(DeletedJobRow.deleted_at)).where(
            DeletedJobRow.deleted_by == by, DeletedJobRow.job_id.not_like("%.%")
        )
        if visible is not None:
            query = query.where(DeletedJobRow.project.in_(visible))
        return RemovalCounts(*self.session.execute(query).one())

    def key_of(self, project: str, job_id: str) -> int | None:
        """The key of the job with that id that the project has, or has ever had."""
        job = self.job(project, job_id) or self.deleted_job(project, job_id)
        return job.key if job is not None else None

    def is_used(self, project: str, job_id: str) -> bool:
        """Whether the project has, or has ever had, a job with that id."""
        return self.key_of(project, job_id) is not None

    def job_by_key(self, key: int) -> JobRow:
        return self.session.get_one(JobRow, key)

    def jobs_by_key(self, keys: Iterable[int]) -> dict[int, JobRow]:
        """The jobs with these keys."""
        chosen = list(keys)
        query = select(JobRow).where(JobRow.key.in_(chosen))
        return {job.key: job for job in self.session.scalars(query)} if chosen else {}

    def job_input(self, job: JobRow) -> JobInput:
        """The job's training input and gang. Raises InvalidArgument or KeyError for a row that cannot be parsed."""
        return self._inputs.of(job)

    def jobs(
        self,
        project: str,
        condition: ColumnElement[bool] | None,
        below: int | None,
        limit: int,
        *,
        trials: bool = False,
    ) -> tuple[Sequence[JobRow], bool]:
        """The project's jobs, without trials unless asked for, the newest first, from the first whose key is below
        `below`, and whether there are more: at most `limit`, and at most PAGE_BYTES of their configs unless one alone
        is larger."""
        query = select(JobRow.key).where(JobRow.project == project).order_by(JobRow.key.desc())
        if not trials:
            query = query.where(JobRow.study_key.is_(None))
        if condition is not None:
            query = query.where(condition)
        if below is not None:
            query = query.where(JobRow.key < below)
        chosen = query.limit(limit + 1).subquery()  # the configs of these alone are read
        size = func.length(cast(JobRow.training_input, Text)) + func.length(cast(JobRow.gang, Text))
        sized = select(JobRow.key, size).where(JobRow.key.in_(select(chosen.c.key)))
        sizes = self.session.execute(sized.order_by(JobRow.key.desc())).all()
        totals = accumulate(size for _, size in sizes)
        keys = [key for (key, _), total in zip(sizes, totals, strict=True) if total <= PAGE_BYTES][:limit]
        keys = keys or [key for key, _ in sizes[:1]]
        rows = select(JobRow).where(JobRow.key.in_(keys)).order_by(JobRow.key.desc())
        return self.session.scalars(rows).all(), len(keys) < len(sizes)

    def common_labels(self, labels: Iterable[Label]) -> frozenset[Label]:
        """Those of the labels that many jobs have: to look at each job is faster than a list of these jobs."""
        counts = {
            label: select(func.count()).select_from(jobs_labelled(*label).limit(_MANY).subquery()) for label in labels
        }
        return frozenset(label for label, count in counts.items() if self.session.scalar(count) == _MANY)

    def unfinished(self, *, with_studies: bool = False) -> Sequence[JobRow]:
        """All jobs that have not ended, the oldest first: trials among them, and studies if asked for."""
        query = select(JobRow).where(JobRow.state.in_(UNFINISHED_JOBS)).order_by(JobRow.key)
        return self.session.scalars(query if with_studies else query.where(NO_STUDY)).all()

    def queued(self) -> Sequence[JobRow]:
        """All jobs that wait for a run, trials among them, studies and those that are held back not."""
        waiting = JobRow.state == JobState.QUEUED, JobRow.waiting_kind != HELD
        return self.session.scalars(select(JobRow).where(*waiting, NO_STUDY)).all()

    def projects(self, keys: Iterable[int]) -> dict[int, str]:
        """The project of each of these jobs."""
        rows = self.session.execute(select(JobRow.key, JobRow.project).where(JobRow.key.in_(list(keys))))
        return {key: project for key, project in rows}  # noqa: C416 - rows are tuples by name

    def names(self, keys: Iterable[int]) -> dict[int, tuple[str, str]]:
        """The project and the id of each of these jobs."""
        chosen = JobRow.key.in_(list(keys))
        rows = self.session.execute(select(JobRow.key, JobRow.project, JobRow.job_id).where(chosen))
        return {key: (project, job_id) for key, project, job_id in rows}

    def owners(self, keys: Iterable[int]) -> dict[int, str]:
        """Those who submitted these jobs; "" where that is unknown."""
        rows = self.session.execute(select(JobRow.key, JobRow.owner).where(JobRow.key.in_(list(keys))))
        return {key: owner for key, owner in rows}  # noqa: C416 - rows are tuples by name

    def job_counts(self, visible: Visible) -> dict[JobState, int]:
        """The jobs of visible projects by state, without trials."""
        query = select(JobRow.state, func.count()).where(JobRow.study_key.is_(None)).group_by(JobRow.state)
        rows = self.session.execute(query if visible is None else query.where(JobRow.project.in_(visible)))
        return {state: count for state, count in rows}  # noqa: C416 - rows are tuples by name

    def activities(self, job_keys: Iterable[int]) -> dict[int, str]:
        """The activities of the live runs of these jobs, by job."""
        query = select(RunRow.job_key, RunRow.activity)
        rows = self.session.execute(
            query.where(RunRow.job_key.in_(list(job_keys)), RunRow.state.in_(LIVE_RUNS), RunRow.beside.is_(None))
        )
        activities: dict[int, str] = {}
        for key, activity in rows:  # of several parts one that does something
            activities[key] = activities.get(key) or activity
        return activities

    def run(self, run_id: str) -> RunRow | None:
        return self.session.get(RunRow, run_id)

    def runs(self, job_key: int) -> Sequence[RunRow]:
        """The runs of the job's gang, without those of restarted evaluators and without further parts."""
        query = select(RunRow).filter_by(job_key=job_key, beside=None, part_of=None).order_by(RunRow.number)
        return self.session.scalars(query).all()

    def reached(self, job_key: int) -> tuple[int | None, int | None]:
        """The newest checkpoint and the last step of the ended runs of the job's gang."""
        query = select(func.max(ReplicaRow.durable_step), func.max(ReplicaRow.step)).join(
            RunRow, RunRow.run_id == ReplicaRow.run_id
        )
        ended = (RunRow.job_key == job_key, RunRow.beside.is_(None), RunRow.state == RunState.ENDED)
        checkpoint, step = self.session.execute(query.where(*ended)).one()
        return checkpoint, step

    def rules_used(self, job_key: int) -> tuple[int, ...]:
        """The number of the retry rule by which each ended run of the job's gang was followed by another one."""
        rule = RunRow.verdict["retry_rule"].as_integer()
        ended = (RunRow.beside.is_(None), RunRow.part_of.is_(None), RunRow.state == RunState.ENDED)
        return tuple(self.session.scalars(select(rule).where(RunRow.job_key == job_key, *ended, rule.is_not(None))))

    def last_runs(self, job_keys: Collection[int]) -> Sequence[RunRow]:
        """The newest run of the gang of each of these jobs, with its further parts."""
        if not job_keys:
            return ()
        newest = (
            select(RunRow.job_key, func.max(RunRow.number).label("number"))
            .where(RunRow.job_key.in_(list(job_keys)), RunRow.beside.is_(None))
            .group_by(RunRow.job_key)
            .subquery()
        )
        same = and_(RunRow.job_key == newest.c.job_key, RunRow.number == newest.c.number)
        return self.session.scalars(select(RunRow).join(newest, same)).all()

    def restarts(self, job_keys: Iterable[int]) -> Sequence[RunRow]:
        """The runs of restarted evaluators of some jobs, each job's in order."""
        query = select(RunRow).where(RunRow.job_key.in_(list(job_keys)), RunRow.beside.is_not(None))
        return self.session.scalars(query.order_by(RunRow.job_key, RunRow.number)).all()

    def live_run(self, job_key: int) -> RunRow | None:
        """The live run of the job's gang."""
        live = select(RunRow).where(RunRow.job_key == job_key, RunRow.state.in_(LIVE_RUNS))
        return self.session.scalar(live.where(RunRow.beside.is_(None), RunRow.part_of.is_(None)))

    def parts(self, run: RunRow) -> Sequence[RunRow]:
        """All parts of a run, itself first, in the order of their replicas. Of most runs no row is read."""
        if run.agents == 1:
            return (run,)
        lead = run.part_of or run.run_id
        query = select(RunRow).where(or_(RunRow.run_id == lead, RunRow.part_of == lead))
        rows = self.session.scalars(query.order_by(RunRow.run_id)).all()
        return sorted(rows, key=lambda row: row.part_of is not None)

    def gang(self, run: RunRow) -> Sequence[ReplicaRow]:
        """The replicas of all parts of a run, in their order."""
        return self.replicas(part.run_id for part in self.parts(run))

    def part_with(self, run: RunRow, task: str) -> RunRow:
        """The part of a run that has this replica; the first one, if none has."""
        parts = self.parts(run)
        return next((part for part in parts[1:] if self.replica(part.run_id, task) is not None), parts[0])

    def live_runs(self, agent_id: str | None = None) -> Sequence[RunRow]:
        """All runs that have not ended, or those of one agent, in a fixed order, each part by itself."""
        query = select(RunRow).where(RunRow.state.in_(LIVE_RUNS)).order_by(RunRow.created_at, RunRow.run_id)
        if agent_id is not None:
            query = query.where(RunRow.agent_id == agent_id)
        return self.session.scalars(query).all()

    def late_runs(self, agent_id: str, run_ids: Collection[str]) -> Sequence[RunRow]:
        """Those of these runs that ended without this agent, which was lost, and whose jobs go on: it may still send
        their logs."""
        if not run_ids:
            return ()
        with_open_logs = select(ReplicaRow.run_id).where(ReplicaRow.run_id.in_(run_ids), IS_LOG_OPEN)
        query = (
            select(RunRow)
            .join(JobRow, JobRow.key == RunRow.job_key)
            .where(RunRow.run_id.in_(with_open_logs), RunRow.agent_id == agent_id)
            .where(RunRow.state == RunState.ENDED, JobRow.state.in_(UNFINISHED_JOBS))
        )
        return self.session.scalars(query.order_by(RunRow.run_id)).all()

    def replicas(self, run_ids: Iterable[str]) -> Sequence[ReplicaRow]:
        """The replicas of some runs, each gang in its own order."""
        chosen = list(run_ids)
        query = select(ReplicaRow).where(ReplicaRow.run_id.in_(chosen)).order_by(ReplicaRow.position)
        return self.session.scalars(query).all() if chosen else ()

    def replicas_by_run(self, run_ids: Iterable[str]) -> dict[str, list[ReplicaRow]]:
        """The replicas of each of some runs, in their own order."""
        gangs: dict[str, list[ReplicaRow]] = {run_id: [] for run_id in run_ids}
        for replica in self.replicas(gangs):
            gangs[replica.run_id].append(replica)
        return gangs

    def replica(self, run_id: str, task: str) -> ReplicaRow | None:
        return self.session.get(ReplicaRow, (run_id, task))

    def digests(self, run_ids: Iterable[str]) -> dict[tuple[str, str], Mapping[str, Any]]:
        """Metrics of the replicas of some runs, by run and task, in the form of `CurveSummary.json`."""
        rows = self.session.execute(
            select(ReplicaRow.run_id, ReplicaRow.task, ReplicaRow.metrics).where(
                ReplicaRow.run_id.in_(list(run_ids)), ReplicaRow.metrics.is_not(None)
            )
        )
        return {(run_id, task): metrics for run_id, task, metrics in rows}

    def events(self, job_key: int) -> Sequence[EventRow]:
        return self.session.scalars(select(EventRow).filter_by(job_key=job_key).order_by(EventRow.number)).all()

    def service_lines(self, job_keys: Iterable[int]) -> Mapping[int, Sequence[ServiceLine]]:
        """The events of each of these jobs that are lines of the service's log."""
        query = select(EventRow.job_key, EventRow.time, EventRow.message, EventRow.kind, EventRow.after).where(
            EventRow.job_key.in_(list(job_keys)), EventRow.message != ""
        )
        lines: dict[int, list[ServiceLine]] = {}
        rows = self.session.execute(query.order_by(EventRow.job_key, EventRow.number))
        for key, time, message, kind, after in rows:
            lines.setdefault(key, []).append(ServiceLine(time, message, kind, after))
        return lines

    def agents(self, *, removed: bool = False) -> Sequence[AgentRow]:
        """Every agent, by the time of its first contact; `removed`: also those that an operator has removed."""
        query = select(AgentRow).order_by(AgentRow.first_seen, AgentRow.agent_id)
        return self.session.scalars(query if removed else query.filter_by(removed_at=None)).all()

    def restored_agents(self) -> Sequence[AgentRow]:
        """The agents that have not called since a backup was restored."""
        return self.session.scalars(select(AgentRow).filter_by(restored=True, removed_at=None)).all()

    def agent(self, agent_id: str) -> AgentRow | None:
        return self.session.get(AgentRow, agent_id)

    def heartbeats(self, agents: Sequence[str] | None = None) -> Sequence[AgentHeartbeat]:
        """The heartbeats of every agent, or of these."""
        query = select(AgentRow.agent_id, AgentRow.heartbeats, AgentRow.last_seen).where(AgentRow.removed_at.is_(None))
        if agents is not None:
            query = query.where(AgentRow.agent_id.in_(agents))
        return [AgentHeartbeat(*row) for row in self.session.execute(query)]

    def others_run(self, agent_id: str) -> bool:
        """Whether an agent that is not removed, other than this one, has a live run."""
        query = (
            select(RunRow.run_id)
            .join(AgentRow, AgentRow.agent_id == RunRow.agent_id)
            .where(RunRow.state.in_(LIVE_RUNS), RunRow.agent_id != agent_id, AgentRow.removed_at.is_(None))
        )
        return self.session.scalar(query.limit(1)) is not None

    def lease(self, name: str) -> LeaseRow | None:
        return self.session.get(LeaseRow, name)

    def installation(self) -> str:
        """The id of the data directory that belongs to this database; "" if none is set."""
        return self.session.scalar(select(InstallationRow.installation_id)) or ""
