"""Snapshots from rows: the input of the lifecycle and the scheduler."""

import logging
from collections.abc import Iterable, Sequence

from trainyard_protocol.states import ReplicaState, RunState
from trainyard_protocol.sync import AgentInfo, ExitReport, Stall
from trainyard_protocol.views import Verdict
from trainyard_server.context import Backend
from trainyard_server.domain.lifecycle import stalls
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.snapshots import JobSnapshot, ReplicaSnapshot, RunSnapshot
from trainyard_server.storage.db.job_inputs import JobInput
from trainyard_server.storage.db.models import AgentRow, JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.reader import Reader

logger = logging.getLogger(__name__)


def agents_now(reader: Reader, backend: Backend) -> list[AgentSnapshot]:
    """Every agent with the resources of its live runs, and of ended runs whose processes still run."""
    live = live_runs(reader)
    projects = reader.projects({run.job_key for run, _ in live})
    gangs: dict[str, list[Gang]] = {}
    for run, replicas in live:
        gangs.setdefault(run.agent_id, []).append(_held(run, replicas, projects[run.job_key]))
    agents = reader.agents()
    for row in agents:
        for run_id in row.orphaned_runs:
            ended = reader.run(run_id)
            if ended is not None:
                gangs.setdefault(row.agent_id, []).append(_held(ended, reader.replicas([run_id])))
    return [_agent(row, gangs.get(row.agent_id, ()), backend.agent_liveness.is_alive(row)) for row in agents]


def idle_agents(reader: Reader) -> list[AgentSnapshot]:
    """Every agent as if it were alive and idle: its whole capacity."""
    return [_agent(row, (), alive=True) for row in reader.agents()]


def live_runs(reader: Reader, agent_id: str | None = None) -> list[tuple[RunRow, list[ReplicaRow]]]:
    """Runs that have not ended, each with its gang; all of them, or those of one agent."""
    runs = reader.live_runs(agent_id)
    gangs: dict[str, list[ReplicaRow]] = {run.run_id: [] for run in runs}
    for replica in reader.replicas(gangs):
        gangs[replica.run_id].append(replica)
    return [(run, gangs[run.run_id]) for run in runs]


def job_snapshot(reader: Reader, key: int) -> JobSnapshot:
    run = reader.live_run(key)
    live = run_snapshot(run, reader.replicas([run.run_id])) if run is not None else None
    job = reader.job_by_key(key)
    return snapshot_of(job, reader.job_input(job), live)


def job_snapshots(reader: Reader) -> list[JobSnapshot]:
    """Every job that has not ended. A job whose row cannot be parsed is logged and left out."""
    live = {run.job_key: (run, gang) for run, gang in live_runs(reader)}
    jobs = []
    for row in reader.unfinished():
        try:
            run = run_snapshot(*live[row.key]) if row.key in live else None
            jobs.append(snapshot_of(row, reader.job_input(row), run))
        except Exception:
            logger.exception("Job %s of %s cannot be read", row.job_id, row.project)
    return jobs


def run_snapshot(run: RunRow, replicas: Iterable[ReplicaRow]) -> RunSnapshot:
    return RunSnapshot(
        run_id=run.run_id,
        number=run.number,
        agent_id=run.agent_id,
        state=run.state,
        replicas=tuple(map(_replica, replicas)),
        stalled=Verdict.model_validate(run.verdict) if run.verdict else None,
    )


def queued_snapshots(reader: Reader, jobs: Iterable[JobRow]) -> list[JobSnapshot]:
    """Queued jobs, without runs. A job whose row cannot be parsed is logged and left out."""
    queued = []
    for job in jobs:
        try:
            queued.append(snapshot_of(job, reader.job_input(job)))
        except Exception:
            logger.exception("Job %s of %s cannot be read", job.job_id, job.project)
    return queued


def snapshot_of(job: JobRow, parsed: JobInput, run: RunSnapshot | None = None) -> JobSnapshot:
    training_input, gang = parsed
    return JobSnapshot(
        key=job.key,
        project=job.project,
        job_id=job.job_id,
        state=job.state,
        training_input=training_input,
        gang=gang,
        created_at=job.created_at,
        queued_at=job.queued_at,
        priority=job.priority,
        started_at=job.started_at,
        backoff_until=job.backoff_until,
        retries_used=job.retries_used,
        stop_message=job.stop_message,
        stall_action=stalls.requested_action(job.labels),
        run=run,
    )


def _agent(row: AgentRow, gangs: Iterable[Gang], alive: bool) -> AgentSnapshot:
    info = AgentInfo.model_validate(row.info)
    return AgentSnapshot(
        agent_id=row.agent_id,
        name=info.name,
        capacity=info.capacity,
        mode=info.capacity_mode,
        runs_images=info.runs_images,
        runs_packages=info.runs_packages,
        engine_problem=info.engine_problem,
        alive=alive,
        gangs=tuple(gangs),
    )


def _held(run: RunRow, replicas: Sequence[ReplicaRow], project: str = "") -> Gang:
    return Gang(
        key=run.job_key,
        project=project,
        cpus=frozenset(cpu for replica in replicas for cpu in replica.cpus),
        gpus=frozenset(gpu for replica in replicas for gpu in replica.gpus),
        memory_bytes=sum(replica.memory_bytes for replica in replicas),
        ended=run.state is RunState.ENDED,
    )


def _replica(row: ReplicaRow) -> ReplicaSnapshot:
    ended = None
    if row.state is ReplicaState.EXITED and row.reason is not None and row.finished_at is not None:
        ended = ExitReport(
            code=row.exit_code,
            reason=row.reason,
            message=row.message,
            finished_at=row.finished_at,
            after_stop=row.after_stop,
        )
    return ReplicaSnapshot(
        task=row.task,
        state=row.state,
        address=row.address,
        started_at=row.started_at,
        exit=ended,
        log_complete=row.log_complete,
        step=row.step,
        stall=Stall.model_validate(row.stall) if row.stall else None,
        stacks=row.stacks,
    )
