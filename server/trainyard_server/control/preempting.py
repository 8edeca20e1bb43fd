"""Preemption in the database: reads which runs may be stopped for others, and stops them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.job.keys.scheduling import Band
from trainyard_protocol.states import JobState, Outcome, Reason, RunState
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import live_runs
from trainyard_server.domain.lifecycle.decisions import Transition
from trainyard_server.domain.scheduling.preemption import PreemptibleRun, Preemption, preemption
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.sharing import Sharing
from trainyard_server.domain.snapshots import JobSnapshot
from trainyard_server.storage.db.base.models import ReplicaRow, RunRow
from trainyard_server.storage.db.queries.reader import Reader

_LIVE = (RunState.PREPARING, RunState.RUNNING)


def next_preemption(
    backend: Backend,
    queue: Collection[JobSnapshot],
    agents: Sequence[AgentSnapshot],
    jobs: Iterable[JobSnapshot],
    now: datetime,
) -> Preemption | None:
    """The runs to stop for a job that waits; None if nothing is to be stopped. `jobs`: all that have not ended."""
    limits = backend.quotas
    sharing = limits.sharing
    if not sharing.preempts or all(sharing.band_of(job) is Band.BATCH for job in queue):
        return None
    batch = [job for job in jobs if job.run is not None and _is_preemptible(job, sharing)]
    stopping = {job.key for job in batch if _is_preempted(job)}
    live = {job.key for job in batch if job.run is not None and job.run.state in _LIVE}
    if not live:
        return None
    with backend.store.read() as reader:
        preemptible = _runs(reader, live, sharing, now)
    return preemption(queue, agents, preemptible, stopping, now, limits, backend.shared_dirs)


def stopped_for(job: JobSnapshot, sharing: Sharing) -> Transition:
    """The move of a run that is stopped for a job."""
    message = f"Preempted for the job {job.job_id} of {job.project}, of the band {sharing.band_of(job).lower()}."
    verdict = Verdict(
        outcome=Outcome.FAILED, reason=Reason.PREEMPTED, message=message, replica=PRIMARY.name, exit_code=1
    )
    return Transition(run=RunState.STOPPING, run_message=message, verdict=verdict)


def _is_preemptible(job: JobSnapshot, sharing: Sharing) -> bool:
    states = (JobState.PREPARING, JobState.RUNNING)
    return job.state in states and sharing.of(job.project).preemptible and sharing.band_of(job) is Band.BATCH


def _is_preempted(job: JobSnapshot) -> bool:
    verdict = job.run.stalled if job.run is not None else None
    return verdict is not None and verdict.reason is Reason.PREEMPTED


def _runs(reader: Reader, keys: Collection[int], sharing: Sharing, now: datetime) -> Mapping[int, PreemptibleRun]:
    """The runs that have lasted long enough to be stopped, by their jobs."""
    runs = {}
    for run, replicas in live_runs(reader):
        is_lead = run.beside is None and run.part_of is None
        if run.job_key not in keys or not is_lead or run.state not in _LIVE:
            continue
        gang = replicas if run.agents == 1 else reader.gang(run)
        began = min((replica.started_at for replica in gang if replica.started_at), default=run.created_at)
        if now - began >= sharing.min_run:
            runs[run.job_key] = PreemptibleRun(run.job_key, _at_risk(run, gang, began, now))
    return runs


def _at_risk(run: RunRow, replicas: Sequence[ReplicaRow], began: datetime, now: datetime) -> float:
    """The GPU-seconds since the run's last checkpoint; without GPUs a tenth of the CPU-seconds."""
    if run.state is RunState.PREPARING:
        return 0.0
    saved = max((replica.durable_at for replica in replicas if replica.durable_at is not None), default=began)
    gpus = sum(len(replica.gpus) or replica.accelerator_count for replica in replicas)
    cpus = sum(len(replica.cpus) or replica.vcpus for replica in replicas)
    return (now - max(saved, began)).total_seconds() * (gpus or cpus / 10)
