"""From rows to the values that `lifecycle` and `scheduler` decide over."""

import logging
from collections.abc import Iterable, Sequence

from trainyard_protocol.cluster import Task
from trainyard_protocol.fields import seconds
from trainyard_protocol.machines import ReplicaRequest, Resources
from trainyard_protocol.states import ReplicaState, RunState
from trainyard_protocol.sync import AgentInfo, ExitReport, Stall
from trainyard_protocol.training_input import DEFAULT_MAX_RUNNING_TIME_S
from trainyard_protocol.views import Verdict
from trainyard_server.context import Backend
from trainyard_server.domain.lifecycle import decisions as lifecycle
from trainyard_server.domain.lifecycle import stalls
from trainyard_server.domain.scheduling import scheduler
from trainyard_server.domain.scheduling.resources import Agent, Gang
from trainyard_server.storage.db.models import AgentRow, JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.repository import Reader

logger = logging.getLogger(__name__)


def agents_now(reader: Reader, backend: Backend) -> list[Agent]:
    """Every agent with what its live runs hold, and what is left there of runs that are over."""
    live = live_runs(reader)
    projects = reader.projects({run.job_key for run, _ in live})
    gangs: dict[str, list[Gang]] = {}
    for run, replicas in live:
        gangs.setdefault(run.agent_id, []).append(_held(run, replicas, projects[run.job_key]))
    agents = reader.agents()
    for row in agents:
        for run_id in row.leftovers:
            ended = reader.run(run_id)
            if ended is not None:
                gangs.setdefault(row.agent_id, []).append(_held(ended, reader.replicas([run_id])))
    return [_agent(row, gangs.get(row.agent_id, ()), backend.hearing.is_alive(row)) for row in agents]


def idle_agents(reader: Reader) -> list[Agent]:
    """Every agent as if it were alive and nothing ran there: what it could hold."""
    return [_agent(row, (), alive=True) for row in reader.agents()]


def live_runs(reader: Reader, agent_id: str | None = None) -> list[tuple[RunRow, list[ReplicaRow]]]:
    """Runs that are not over, each with its gang; all of them, or those of one agent."""
    runs = reader.live_runs(agent_id)
    gangs: dict[str, list[ReplicaRow]] = {run.run_id: [] for run in runs}
    for replica in reader.replicas(gangs):
        gangs[replica.run_id].append(replica)
    return [(run, gangs[run.run_id]) for run in runs]


def job_snapshot(reader: Reader, key: int) -> lifecycle.Job:
    run = reader.live_run(key)
    live = run_snapshot(run, reader.replicas([run.run_id])) if run is not None else None
    return _job(reader.job_by_key(key), live)


def job_snapshots(reader: Reader) -> list[lifecycle.Job]:
    """Every job that is not over; one that cannot be read is logged and left out."""
    live = {run.job_key: (run, gang) for run, gang in live_runs(reader)}
    jobs = []
    for row in reader.unfinished():
        try:
            run = run_snapshot(*live[row.key]) if row.key in live else None
            jobs.append(_job(row, run))
        except Exception:
            logger.exception("Job %s of %s cannot be read", row.job_id, row.project)
    return jobs


def _job(job: JobRow, run: lifecycle.Run | None) -> lifecycle.Job:
    scheduling = job.training_input.get("scheduling", {})
    max_wait = scheduling.get("maxWaitTime")
    max_running = scheduling.get("maxRunningTime")
    return lifecycle.Job(
        key=job.key,
        project=job.project,
        job_id=job.job_id,
        state=job.state,
        queued_at=job.queued_at,
        started_at=job.started_at,
        max_running_s=seconds(max_running) if max_running else DEFAULT_MAX_RUNNING_TIME_S,
        max_wait_s=seconds(max_wait) if max_wait else None,
        retries_used=job.retries_used,
        stop_message=job.stop_message,
        run=run,
        stall_action=stalls.said_action(job.labels),
    )


def run_snapshot(run: RunRow, replicas: Iterable[ReplicaRow]) -> lifecycle.Run:
    return lifecycle.Run(
        run_id=run.run_id,
        number=run.number,
        agent_id=run.agent_id,
        state=run.state,
        replicas=tuple(map(_replica, replicas)),
        stalled=Verdict.model_validate(run.verdict) if run.verdict else None,
    )


def gang_to_json(gang: Sequence[ReplicaRequest]) -> list[dict[str, object]]:
    """How a job's row keeps what it asks for; `_gang` reads it."""
    return [
        {
            "task": request.task.name,
            "machine_type": request.machine_type,
            "vcpus": request.resources.vcpus,
            "memory_bytes": request.resources.memory_bytes,
            "accelerator_type": request.resources.accelerator_type,
            "accelerator_count": request.resources.accelerator_count,
        }
        for request in gang
    ]


def _gang(job: JobRow) -> tuple[ReplicaRequest, ...]:
    return tuple(
        ReplicaRequest(
            Task.parse(one["task"]),
            one["machine_type"],
            Resources(one["vcpus"], one["memory_bytes"], one["accelerator_type"], one["accelerator_count"]),
        )
        for one in job.gang
    )


def queued_snapshots(jobs: Iterable[JobRow]) -> list[scheduler.Queued]:
    """What of the queue can be read; the rest is logged and left out."""
    queued = []
    for job in jobs:
        try:
            queued.append(queued_snapshot(job))
        except Exception:
            logger.exception("Job %s of %s cannot be read", job.job_id, job.project)
    return queued


def queued_snapshot(job: JobRow) -> scheduler.Queued:
    return scheduler.Queued(
        key=job.key,
        priority=job.priority,
        created_at=job.created_at,
        gang=_gang(job),
        needs_images=bool(job.training_input.get("masterConfig", {}).get("imageUri")),
        not_before=job.not_before,
        project=job.project,
    )


def _agent(row: AgentRow, gangs: Iterable[Gang], alive: bool) -> Agent:
    info = AgentInfo.model_validate(row.info)
    return Agent(
        agent_id=row.agent_id,
        name=info.name,
        capacity=info.capacity,
        mode=info.capacity_mode,
        runs_images=info.runs_images,
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
        over=run.state is RunState.ENDED,
    )


def _replica(row: ReplicaRow) -> lifecycle.Replica:
    ended = None
    if row.state is ReplicaState.EXITED and row.reason is not None and row.finished_at is not None:
        ended = ExitReport(
            code=row.exit_code,
            reason=row.reason,
            message=row.message,
            finished_at=row.finished_at,
            after_stop=row.after_stop,
        )
    return lifecycle.Replica(
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
