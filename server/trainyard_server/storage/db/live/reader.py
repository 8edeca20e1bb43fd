"""Reads of live rows from memory: what `Reader` answers with a query is here asked of rows that are known."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from sqlalchemy import select
from sqlalchemy.exc import NoResultFound

from trainyard_protocol.states import RunState
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.live.rows import LIVE_RUNS, LiveJob
from trainyard_server.storage.db.queries.reader import Reader


class KnownRows(Protocol):
    """What is known of the database. None: a query has to tell."""

    def job(self, key: int) -> LiveJob | None: ...
    def known_job(self, key: int) -> LiveJob | None: ...
    def job_of_run(self, run_id: str) -> LiveJob | None: ...
    def jobs_on(self, agent_id: str) -> Iterable[int]: ...
    def busy_agents(self) -> Iterable[str]: ...
    def agent(self, agent_id: str) -> AgentRow | None: ...
    def all_agents(self) -> Sequence[AgentRow]: ...


class LiveReader(Reader):
    """A reader whose rows of jobs, runs, replicas and agents are those that are known. Lists of jobs are queries."""

    live: KnownRows

    def job(self, project: str, job_id: str) -> JobRow | None:
        key = self._session.scalar(select(JobRow.key).filter_by(project=project, job_id=job_id))
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
        known = {key: job.row for key in chosen if (job := self.live.known_job(key)) is not None}
        return known | super().jobs_by_key([key for key in chosen if key not in known])

    def run(self, run_id: str) -> RunRow | None:
        job = self.live.job_of_run(run_id)
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
        known = {key: job for key in chosen if (job := self.live.known_job(key)) is not None}
        rows = [run for job in known.values() for run in job.runs if run.beside is not None]
        if len(known) < len(chosen):
            rows += super().restarts([key for key in chosen if key not in known])
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

    def replicas(self, run_ids: Iterable[str]) -> Sequence[ReplicaRow]:
        chosen = list(run_ids)
        known = {run_id: job for run_id in chosen if (job := self.live.job_of_run(run_id)) is not None}
        rows = [replica for run_id, job in known.items() for replica in job.replicas[run_id]]
        if len(known) < len(chosen):
            rows += super().replicas([run_id for run_id in chosen if run_id not in known])
        return sorted(rows, key=lambda row: row.position)

    def replica(self, run_id: str, task: str) -> ReplicaRow | None:
        job = self.live.job_of_run(run_id)
        if job is None:
            return super().replica(run_id, task)
        return next((replica for replica in job.replicas[run_id] if replica.task == task), None)

    def agents(self, *, removed: bool = False) -> Sequence[AgentRow]:
        rows = [row for row in self.live.all_agents() if removed or row.removed_at is None]
        return sorted(rows, key=lambda row: (row.first_seen, row.agent_id))

    def restored_agents(self) -> Sequence[AgentRow]:
        return [row for row in self.agents() if row.restored]

    def agent(self, agent_id: str) -> AgentRow | None:
        return self.live.agent(agent_id)

    def others_run(self, agent_id: str) -> bool:
        """Whether an agent that is not removed, other than this one, has a live run."""
        others = (self.live.agent(other) for other in self.live.busy_agents() if other != agent_id)
        return any(row is not None and row.removed_at is None for row in others)
