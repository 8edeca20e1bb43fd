"""Snapshots from rows: the input of the lifecycle and the scheduler."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.job.cluster import TrialOrder
from trainyard_protocol.states import JobState, ReplicaState, RunState
from trainyard_protocol.wire.agents import CLUSTER, AgentInfo, no_room
from trainyard_protocol.wire.observations import Stall
from trainyard_protocol.wire.peers import SHORT_LEASE_S
from trainyard_protocol.wire.sync import ExitReport, SpreadOrder
from trainyard_server.context import Backend
from trainyard_server.domain.lifecycle import stalls
from trainyard_server.domain.lifecycle.leases import AgentLease, awaited
from trainyard_server.domain.scheduling.avoidance import Avoidance, avoidance
from trainyard_server.domain.scheduling.blame import HostFailure, avoided_until
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.snapshots import JobSnapshot, Reached, ReplicaSnapshot, RunSnapshot
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.models import JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.queries.job_inputs import JobInput
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import studies

logger = logging.getLogger(__name__)


def agents_now(reader: Reader, backend: Backend) -> list[AgentSnapshot]:
    """Every agent with the resources of its live runs, and of ended runs whose processes still run. A restarted
    evaluator has those that it had in the run of its gang."""
    live = [(run, replicas) for run, replicas in live_runs(reader) if run.beside is None]
    projects = reader.projects({run.job_key for run, _ in live})
    gangs: dict[str, list[Gang]] = {}
    for run, replicas in live:
        gangs.setdefault(run.agent_id, []).append(gang_of(run, replicas, projects[run.job_key]))
    agents = reader.agents()
    for row in agents:
        for run_id in row.orphaned_runs:
            ended = reader.run(run_id)
            if ended is not None:
                gangs.setdefault(row.agent_id, []).append(gang_of(ended, reader.replicas([run_id])))
    return [agent_snapshot(row, gangs.get(row.agent_id, ()), backend.agent_liveness.is_alive(row)) for row in agents]


def idle_agents(reader: Reader) -> list[AgentSnapshot]:
    """Every agent as if it were alive and idle: its whole capacity."""
    return [agent_snapshot(row, (), alive=True) for row in reader.agents()]


def live_runs(reader: Reader, agent_id: str | None = None) -> list[tuple[RunRow, list[ReplicaRow]]]:
    """Parts of runs that have not ended, each with its replicas; all of them, or those of one agent."""
    runs = reader.live_runs(agent_id)
    gangs = reader.replicas_by_run(run.run_id for run in runs)
    return [(run, gangs[run.run_id]) for run in runs]


def job_snapshot(reader: Reader, key: int) -> JobSnapshot:
    job, run = reader.job_by_key(key), reader.live_run(key)
    parsed = reader.job_input(job)
    if run is None:
        return snapshot_of(job, parsed)
    live = run_snapshot(run, reader.gang(run))
    snapshot = snapshot_of(job, parsed, live, restarts_of(reader, [run]).get(key, ()))
    if run.number == 1:
        return snapshot
    return replace(snapshot, reached_before=Reached(*reader.reached(key)), rules_used=reader.rules_used(key))


def restarts_of(reader: Reader, live: Iterable[RunRow]) -> dict[int, tuple[RunSnapshot, ...]]:
    """The runs of evaluators alone beside these runs, by job."""
    numbers = {run.job_key: run.number for run in live}
    rows = [row for row in reader.restarts(numbers) if row.beside == numbers[row.job_key]]
    replicas = {replica.run_id: replica for replica in reader.replicas([row.run_id for row in rows])}
    restarts: dict[int, tuple[RunSnapshot, ...]] = {}
    for row in rows:
        restarts[row.job_key] = (*restarts.get(row.job_key, ()), run_snapshot(row, [replicas[row.run_id]]))
    return restarts


def run_snapshot(run: RunRow, replicas: Iterable[ReplicaRow]) -> RunSnapshot:
    return RunSnapshot(
        run_id=run.run_id,
        number=run.number,
        state=run.state,
        replicas=tuple(map(_replica, replicas)),
        stalled=Verdict.model_validate(run.verdict) if run.verdict else None,
        is_spread=run.agents > 1,
    )


def queued_snapshots(reader: Reader, jobs: Iterable[JobRow]) -> list[JobSnapshot]:
    """Queued jobs, without runs. A job whose row cannot be parsed is logged and left out."""
    queued, jobs = [], list(jobs)
    avoided = avoidances(reader, jobs)
    for job in jobs:
        try:
            queued.append(replace(snapshot_of(job, reader.job_input(job)), avoids=avoided.get(job.key)))
        except Exception:
            logger.exception("Job %s of %s cannot be read", job.job_id, job.project)
    return queued


def avoidances(reader: Reader, jobs: Iterable[JobRow]) -> dict[int, Avoidance]:
    """The agents that queued jobs avoid, by job: few have had a run."""
    retried = [job.key for job in jobs if job.state is JobState.QUEUED and job.backoff_until is not None]
    avoided_by_job: dict[int, Avoidance] = {}
    for run in reader.last_runs(retried):
        verdict = run.verdict or {}
        if run.part_of is not None or run.ended_at is None:
            continue
        at_fault = reader.part_with(run, str(verdict.get("replica", "")))
        reason, other_host = str(verdict.get("reason", "")), bool(verdict.get("other_host"))
        avoided = avoidance(at_fault.agent_id, reason, run.ended_at, other_host=other_host)
        if avoided is not None:
            avoided_by_job[run.job_key] = avoided
    return avoided_by_job


def snapshot_of(
    job: JobRow, parsed: JobInput, run: RunSnapshot | None = None, restarts: tuple[RunSnapshot, ...] = ()
) -> JobSnapshot:
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
        owner=job.owner,
        priority=job.priority,
        run_limit_s=job.run_limit_s,
        started_at=job.started_at,
        backoff_until=job.backoff_until,
        is_held=job.is_held,
        retries_used=job.retries_used,
        stop_message=job.stop_message,
        stall_action=stalls.requested_action(job.labels),
        run=run,
        restarts=restarts,
    )


def peers_of(replicas: Iterable[ReplicaRow], gang: Iterable[ReplicaRow]) -> dict[str, str]:
    """The addresses of the gang of a restarted evaluator, by task, without its own."""
    own = {replica.task for replica in replicas}
    return {peer.task: peer.address for peer in gang if peer.task not in own and peer.address}


def spread_order(reader: Reader, run: RunRow) -> SpreadOrder | None:
    """The order for each part of a run over several agents; None for another run. Its addresses are told once every
    part has its own."""
    if run.agents == 1:
        return None
    parts = reader.parts(run)
    replicas = reader.replicas(part.run_id for part in parts)
    addresses = {replica.task: replica.address for replica in replicas}
    agents = {part.run_id: part.agent_id for part in parts}
    return SpreadOrder(
        gang=run.part_of or run.run_id,
        addresses=addresses if all(addresses.values()) else {},
        agents={replica.task: agents[replica.run_id] for replica in replicas},
        starts=all(part.ready for part in parts),
    )


def trial_order(reader: Reader, job: JobRow) -> TrialOrder | None:
    """The study as the replicas of its trial are told; None for another job."""
    trial_and_study = studies.trial_of(reader, job)
    if trial_and_study is None:
        return None
    trial, study = trial_and_study
    spec = reader.job_input(study)[0].hyperparameters
    if spec is None:
        raise KeyError("hyperparameters")
    return TrialOrder(
        study=study.job_id,
        number=trial.number,
        metric_tag=spec.hyperparameter_metric_tag,
        hyperparameters=spec.snake_case(),
    )


def order_of_capabilities(reader: Reader, backend: Backend, job: JobRow, run_token: str = "") -> dict[str, Any]:
    """The fields that capabilities have in the order of a run of a job."""
    fields: dict[str, Any] = {"variables": {}}
    for capability in backend.capabilities:
        if capability.order is not None:
            own = capability.order(backend, reader, job, run_token)
            fields |= {**own, "variables": {**fields["variables"], **own.get("variables", {})}}
    return fields


def agent_snapshot(row: AgentRow, gangs: Iterable[Gang], alive: bool) -> AgentSnapshot:
    info = AgentInfo.model_validate(row.info)
    return AgentSnapshot(
        agent_id=row.agent_id,
        name=info.name,
        capacity=info.capacity,
        mode=info.capacity_mode,
        runs_images=info.runs_images,
        runs_packages=info.runs_packages,
        engine_problem=info.engine_problem,
        no_processes=info.no_processes,
        alive=alive,
        draining=row.draining,
        engine=info.kind == CLUSTER,
        gangs=tuple(gangs),
        in_flight=info.in_flight,
        no_room=no_room(info.disks),
        drain_reason=row.drain_reason,
        avoided_until=avoided_until([HostFailure.read(failure) for failure in row.failures]),
        address=info.address,
        group=info.group,
        unreached=frozenset(info.unreached),
        mounts=info.mounts,
    )


def agent_lease(row: AgentRow, backend: Backend) -> AgentLease:
    """The lease of an agent now. One of a backup has none that is known here."""
    membership, is_limited = backend.membership, row.lease_s is not None and not row.restored
    lease_s = backend.settings.lease_s if row.lease_s is None else row.lease_s
    ends_s = membership.lease_ends_s(row.agent_id, lease_s, row.member_lists) if membership.decides else lease_s
    by_majority = row.lease_s == SHORT_LEASE_S and row.has_members
    return AgentLease(
        agent=str(row.info["name"]),
        lease_s=row.lease_s if is_limited else None,
        keeper=("majority" if by_majority else "server") if is_limited else "nobody",
        silent_s=backend.agent_liveness.silent_s(row),
        is_silent=not backend.agent_liveness.is_alive(row),
        lost_after_s=ends_s if is_limited else None,
        given_up_after_s=lease_s,
    )


def awaited_agents(reader: Reader, backend: Backend, job: JobRow, *, silent: bool = False) -> str:
    """The agents that a job waits for since they are silent, or have to stop it, as the end of a sentence; "" without
    one. `silent`: only the former."""
    run, is_cancelled = reader.live_run(job.key), job.state is JobState.CANCELLING
    parts = reader.parts(run) if run is not None else ()
    leases = [(part, agent_lease(row, backend)) for part in parts if (row := reader.agent(part.agent_id)) is not None]
    open_ones = [
        lease
        for part, lease in leases
        if (lease.is_silent or (is_cancelled and not silent)) and not _has_ended(reader, part)
    ]
    return awaited(open_ones, backend.clock(), cancelled=is_cancelled)


def _has_ended(reader: Reader, part: RunRow) -> bool:
    replicas = reader.replicas([part.run_id])
    return all(replica.state is ReplicaState.EXITED and replica.log_complete for replica in replicas)


def gang_of(run: RunRow, replicas: Sequence[ReplicaRow], project: str = "") -> Gang:
    return Gang.of(
        replicas,
        run.job_key,
        project,
        ended=run.state is RunState.ENDED,
        waits=run.state is RunState.PREPARING,
        further=run.part_of is not None,
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
            order=row.exit_order,
            error_s=row.exit_error_s,
        )
    return ReplicaSnapshot(
        task=row.task,
        state=row.state,
        address=row.address,
        started_at=row.started_at,
        exit=ended,
        log_complete=row.log_complete,
        step=row.step,
        durable_step=row.durable_step,
        stall=Stall.model_validate(row.stall) if row.stall else None,
        stacks=row.stacks,
        waits=row.waits,
        part=row.run_id,
    )
