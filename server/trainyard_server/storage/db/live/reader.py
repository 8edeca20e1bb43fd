"""Reads of live rows from memory: what `Reader` answers with a query is here asked of rows that are known."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from trainyard_protocol.states import RunState
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.live.rows import LiveJob
from trainyard_server.storage.db.queries.job_inputs import JobInputs
from trainyard_server.storage.db.queries.reader import (
    LIVE_RUNS,
    UNFINISHED_JOBS,
    AgentHeartbeat,
    Reader,
    Revision,
    ServiceLine,
)


class KnownRows(Protocol):
    """Rows of the database that are in memory. None: a query has to tell."""

    def job(self, key: int) -> LiveJob | None: ...
    @property
    def revision(self) -> Revision | None: ...
    def changes_since(self, value: int) -> tuple[set[int], set[str]] | None: ...
    def known_job(self, key: int) -> LiveJob | None: ...
    def known_job_of_run(self, run_id: str) -> LiveJob | None: ...
    def jobs_on(self, agent_id: str) -> Iterable[int]: ...
    def busy_agents(self) -> Iterable[str]: ...
    def agent(self, agent_id: str) -> AgentRow | None: ...
    def all_agents(self) -> Sequence[AgentRow]: ...


class LiveReader(Reader):
    """A reader whose rows of jobs, runs, replicas and agents are those in memory. Lists of jobs are queries."""

    def __init__(self, session: Session, inputs: JobInputs, live: KnownRows) -> None:
        super().__init__(session, inputs)
        self.live = live

    def known_job(self, key: int) -> JobRow | None:
        job = self.live.known_job(key)
        return None if job is None else job.row

    def known_revision(self) -> Revision | None:
        return self.live.revision

    def changes_since(self, value: int) -> tuple[set[int], set[str]] | None:
        return self.live.changes_since(value)

    def job(self, project: str, job_id: str) -> JobRow | None:
        key = self.session.scalar(select(JobRow.key).filter_by(project=project, job_id=job_id))
        return None if key is None else self.find_job(key)

    def find_job(self, key: int) -> JobRow | None:
        job = self.live.job(key)
        return super().find_job(key) if job is None else job.row

    def job_by_key(self, key: int) -> JobRow:
        row = self.find_job(key)
        if row is None:
            raise NoResultFound(f"There is no job with the key {key}.")
        return row

    def jobs_by_key(self, keys: Iterable[int]) -> dict[int, JobRow]:
        chosen = list(keys)
        in_memory = {key: job.row for key in chosen if (job := self.live.known_job(key)) is not None}
        return in_memory | super().jobs_by_key([key for key in chosen if key not in in_memory])

    def run(self, run_id: str) -> RunRow | None:
        job = self.live.known_job_of_run(run_id)
        if job is None:
            return super().run(run_id)
        return next(run for run in job.runs if run.run_id == run_id)

    def runs(self, job_key: int) -> Sequence[RunRow]:
        job = self.live.job(job_key)
        if job is None:
            return super().runs(job_key)
        return [run for run in job.runs if run.beside is None and run.part_of is None]

    def reached(self, job_key: int) -> tuple[int | None, int | None]:
        job = self.live.job(job_key)
        if job is None:
            return super().reached(job_key)
        ended = [run.run_id for run in job.runs if run.beside is None and run.state is RunState.ENDED]
        replicas = [replica for run_id in ended for replica in job.replicas[run_id]]
        saved = [replica.durable_step for replica in replicas if replica.durable_step is not None]
        steps = [replica.step for replica in replicas if replica.step is not None]
        return max(saved, default=None), max(steps, default=None)

    def rules_used(self, job_key: int) -> tuple[int, ...]:
        ended = [run for run in self.runs(job_key) if run.state is RunState.ENDED]
        rules = ((run.verdict or {}).get("retry_rule") for run in ended)
        return tuple(rule for rule in rules if rule is not None)

    def restarts(self, job_keys: Iterable[int]) -> Sequence[RunRow]:
        chosen = sorted(set(job_keys))
        in_memory = {key: job for key in chosen if (job := self.live.known_job(key)) is not None}
        rows = [run for job in in_memory.values() for run in job.runs if run.beside is not None]
        if len(in_memory) < len(chosen):
            rows += super().restarts([key for key in chosen if key not in in_memory])
        return sorted(rows, key=lambda run: (run.job_key, run.number))

    def live_run(self, job_key: int) -> RunRow | None:
        return next((run for run in self.runs(job_key) if run.state in LIVE_RUNS), None)

    def parts(self, run: RunRow) -> Sequence[RunRow]:
        job = self.live.known_job(run.job_key)
        if job is None:
            return super().parts(run)
        lead = run.part_of or run.run_id
        rows = [row for row in job.runs if lead in (row.run_id, row.part_of)]
        return sorted(rows, key=lambda row: (row.part_of is not None, row.run_id))

    def live_runs(self, agent_id: str | None = None) -> Sequence[RunRow]:
        if agent_id is None:
            return super().live_runs()
        jobs = (self.live.job(key) for key in self.live.jobs_on(agent_id))
        rows = [run for job in jobs if job is not None for run in job.runs]
        mine = [run for run in rows if run.agent_id == agent_id and run.state in LIVE_RUNS]
        return sorted(mine, key=lambda run: (run.created_at, run.run_id))

    def late_runs(self, agent_id: str, run_ids: Collection[str]) -> Sequence[RunRow]:
        in_memory = {run_id: job for run_id in run_ids if (job := self.live.known_job_of_run(run_id)) is not None}
        unfinished = [job for job in in_memory.values() if job.row.state in UNFINISHED_JOBS]
        rows = {run.run_id: run for job in unfinished for run in job.runs if run.run_id in in_memory}
        late = [
            run
            for run in rows.values()
            if (run.agent_id, run.state) == (agent_id, RunState.ENDED)
            and any(replica.is_log_open for replica in self.replicas([run.run_id]))
        ]
        others = [run_id for run_id in run_ids if run_id not in in_memory]
        return sorted([*late, *super().late_runs(agent_id, others)], key=lambda run: run.run_id)

    def replicas(self, run_ids: Iterable[str]) -> Sequence[ReplicaRow]:
        chosen = list(run_ids)
        in_memory = {run_id: job for run_id in chosen if (job := self.live.known_job_of_run(run_id)) is not None}
        rows = [replica for run_id, job in in_memory.items() for replica in job.replicas[run_id]]
        if len(in_memory) < len(chosen):
            rows += super().replicas([run_id for run_id in chosen if run_id not in in_memory])
        return sorted(rows, key=lambda row: row.position)

    def replica(self, run_id: str, task: str) -> ReplicaRow | None:
        job = self.live.known_job_of_run(run_id)
        if job is None:
            return super().replica(run_id, task)
        return next((replica for replica in job.replicas[run_id] if replica.task == task), None)

    def names(self, keys: Iterable[int]) -> dict[int, tuple[str, str]]:
        chosen = set(keys)
        rows = {key: job.row for key in chosen if (job := self.live.known_job(key)) is not None}
        in_memory = {key: (row.project, row.job_id) for key, row in rows.items()}
        return in_memory | (super().names(chosen - in_memory.keys()) if len(in_memory) < len(chosen) else {})

    def service_lines(self, job_keys: Iterable[int]) -> Mapping[int, Sequence[ServiceLine]]:
        chosen = set(job_keys)
        jobs = {key: job for key in chosen if (job := self.live.known_job(key)) is not None}
        in_memory = {key: job.lines for key, job in jobs.items() if job.lines is not None}
        return {
            **in_memory,
            **(super().service_lines(chosen - in_memory.keys()) if len(in_memory) < len(chosen) else {}),
        }

    def agents(self, *, removed: bool = False) -> Sequence[AgentRow]:
        rows = [row for row in self.live.all_agents() if removed or row.removed_at is None]
        return sorted(rows, key=lambda row: (row.first_seen, row.agent_id))

    def restored_agents(self) -> Sequence[AgentRow]:
        return [row for row in self.agents() if row.restored]

    def agent(self, agent_id: str) -> AgentRow | None:
        return self.live.agent(agent_id)

    def heartbeats(self, agents: Sequence[str] | None = None) -> Sequence[AgentHeartbeat]:
        chosen = self.live.all_agents() if agents is None else filter(None, map(self.live.agent, agents))
        rows = [row for row in chosen if row.removed_at is None]
        return [AgentHeartbeat(row.agent_id, row.heartbeats, row.last_seen) for row in rows]

    def others_run(self, agent_id: str) -> bool:
        others = (self.live.agent(other) for other in self.live.busy_agents() if other != agent_id)
        return any(row is not None and row.removed_at is None for row in others)
