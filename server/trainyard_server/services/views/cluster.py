"""Cluster overview: agents with their runs, devices and use, the queue, and quotas."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.answers.cluster import ActiveJobsView, ActiveJobView, AgentLeaseView, AgentView, QuotasView
from trainyard_protocol.answers.usage import GpuUsage, UsageSample
from trainyard_protocol.job.resources import Gpu
from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState, RunState
from trainyard_protocol.wire.agents import AgentInfo, MountOffer
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import agent_lease, agents_now, live_runs
from trainyard_server.domain.access.permissions import Visible, is_visible
from trainyard_server.domain.lifecycle.leases import AgentLease
from trainyard_server.domain.scheduling.blame import HostFailure, recent
from trainyard_server.domain.scheduling.quotas import used_by
from trainyard_server.domain.scheduling.resources import Gang
from trainyard_server.services.measurements.usage import newest
from trainyard_server.storage.db.base.agent_models import AgentRow
from trainyard_server.storage.db.base.columns import values_of
from trainyard_server.storage.db.base.models import ReplicaRow, RunRow
from trainyard_server.storage.db.queries.job_queries import JobList, JobListEntry, JobQuery, Order
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import studies
from trainyard_server.storage.events.notifier import QUEUE_TOPIC

ACTIVE_JOBS = 200
"""Most jobs with a run, and most queued ones, in the list of active jobs."""

QUEUE_PAGE = 50
"""Jobs of the queue on a page."""


_PLACED = tuple(state for state in JobState if state not in (JobState.QUEUED, *FINAL_JOB_STATES))


@dataclass(frozen=True, slots=True)
class Holder:
    """The replica that holds a device. `orphaned`: its run has ended, but processes of it still run."""

    project: str
    job_id: str
    owner: str
    task: str
    orphaned: bool


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of an agent. `holder` is None if it is free, or held by a job that is not visible: then `is_held`. `use`
    is None if the holder is, or if it was not measured."""

    gpu: Gpu
    is_held: bool
    holder: Holder | None
    use: GpuUsage | None


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run on an agent with its assigned and used resources; None where nothing was measured. `up` of its `replicas`
    are running."""

    run_id: str
    number: int
    project: str
    job_id: str
    owner: str
    state: RunState
    since: datetime
    activity: str
    orphaned: bool
    replicas: int
    up: int
    cpus: int
    memory_bytes: int
    gpus: int
    cpu_used: float | None
    memory_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class AgentLine:
    """An agent with its visible runs. `hidden_runs`: those of other projects."""

    view: AgentView
    devices: Sequence[Device]
    runs: Sequence[HeldRun]
    hidden_runs: int


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """The quotas of a project: name, used, limit."""

    project: str
    amounts: Sequence[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster with the visible jobs, and `page` of `pages` of their queue. `counts` has them by state."""

    agents: Sequence[AgentLine]
    queue: Sequence[JobListEntry]
    page: int
    pages: int
    counts: Mapping[JobState, int]
    quotas: Sequence[QuotaLine]
    now: datetime

    @property
    def waiting(self) -> int:
        return self.counts.get(JobState.QUEUED, 0)


class ClusterOverview:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def reload_quotas(self) -> QuotasView:
        """Read the quota file again. Running jobs go on; what waits is planned anew.

        Raises InvalidArgument for a file with a mistake, and FailedPrecondition without a file; the quotas then stay.
        """
        quotas = self._backend.quota_file.reload()
        self._backend.notifier.publish(QUEUE_TOPIC)
        projects = {name: dict(limits) for name, limits in quotas.projects.items()}
        return QuotasView(default=dict(quotas.default), projects=projects)

    def page(self, visible: Visible, page: int = 1) -> ClusterView:
        """The cluster with a page of the queue, at most the last one."""
        backend = self._backend
        with backend.store.read() as reader:
            jobs = JobList(reader, visible)
            waiting = jobs.queue_length()
            counts = reader.job_counts(visible) | {JobState.QUEUED: waiting}
            pages = max(1, -(-waiting // QUEUE_PAGE))
            page = min(max(1, page), pages)
            queue = jobs.queue((page - 1) * QUEUE_PAGE, QUEUE_PAGE)
            agents = agent_lines(reader, backend, visible)
            quotas = [line for line in _quotas(reader, backend) if is_visible(line.project, visible)]
        return ClusterView(
            agents=agents, queue=queue, page=page, pages=pages, counts=counts, quotas=quotas, now=backend.clock()
        )

    def active(self, visible: Visible) -> ActiveJobsView:
        """Every visible job that has not ended, and what it does."""
        backend = self._backend
        with backend.store.read() as reader:
            jobs = JobList(reader, visible)
            found = jobs.find(JobQuery(states=_PLACED), Order.CREATED, descending=False, offset=0, limit=ACTIVE_JOBS)
            placed = jobs.entries(found.keys)
            queue = jobs.queue(0, ACTIVE_JOBS, trials=False)
            counts = reader.job_counts(visible)
            agents = agent_lines(reader, backend, visible)
            trials = studies.counts(reader, [job.key for job in placed if job.run is None])
        held: dict[tuple[str, str], list[tuple[str, HeldRun]]] = {}
        for line in agents:
            for run in line.runs:
                if not run.orphaned:
                    held.setdefault((run.project, run.job_id), []).append((line.view.name, run))
        return ActiveJobsView(
            jobs=tuple(
                _active_job(job, held.get((job.project, job.job_id), []), trials.get(job.key))
                for job in (*placed, *queue)
            ),
            counts={state: count for state, count in counts.items() if state not in FINAL_JOB_STATES},
            agents=sum(line.view.alive for line in agents),
            now=backend.clock(),
        )


@dataclass(frozen=True, slots=True)
class _RunRow:
    """A run on an agent with its rows, and the newest samples of its replicas; none of a job that is not visible."""

    is_visible: bool
    project: str
    job_id: str
    owner: str
    run: RunRow
    gang: Sequence[ReplicaRow]
    used: Mapping[str, UsageSample]


def agent_lines(reader: Reader, backend: Backend, visible: Visible) -> list[AgentLine]:
    """Every agent, by the time of its first contact, with the visible ones of its live and orphaned runs.

    What is allocated counts all runs, what is measured the visible ones.
    """
    rows = reader.agents()
    every = live_runs(reader)
    live = [member for member in every if member[0].beside is None]
    restarts = [member for member in every if member[0].beside is not None]
    ended = [run for row in rows for run in map(reader.run, row.orphaned_runs) if run is not None]
    gangs = reader.replicas_by_run(run.run_id for run in ended)
    everything = [*live, *((run, gangs[run.run_id]) for run in ended)]
    keys = {run.job_key for run, _ in everything}
    names, owners = reader.names(keys), reader.owners(keys)
    held: dict[str, list[_RunRow]] = {}
    for run, gang in everything:
        (project, job_id), owner = names[run.job_key], owners[run.job_key]
        shown = is_visible(project, visible)
        used = dict(newest(backend, project, job_id, run, gang)) if shown else {}
        for beside, alone in restarts:
            if (beside.job_key, beside.beside, beside.agent_id) == (run.job_key, run.number, run.agent_id):
                # A restarted evaluator has what it had in the run of its gang.
                gang = [*(member for member in gang if member.task != alone[0].task), *alone]
                used |= newest(backend, project, job_id, beside, alone) if shown else {}
        held.setdefault(run.agent_id, []).append(_RunRow(shown, project, job_id, owner, run, gang, used))
    now = backend.clock()
    leases = {row.agent_id: agent_lease(row, backend) for row in rows}
    return [_agent_line(row, held.get(row.agent_id, ()), leases[row.agent_id], now, visible) for row in rows]


def _lease_view(lease: AgentLease, now: datetime) -> AgentLeaseView:
    lost_at = None if not lease.is_silent or lease.lost_after_s is None else lease.time_of(lease.lost_after_s, now)
    return AgentLeaseView(seconds=lease.lease_s, keeper=lease.keeper, lost_at=lost_at)


def _agent_line(
    row: AgentRow, held: Sequence[_RunRow], lease: AgentLease, now: datetime, visible: Visible
) -> AgentLine:
    failures = map(HostFailure.read, row.failures)
    info = AgentInfo.model_validate(row.info)
    runs = [_held_run(gang) for gang in held if gang.is_visible]
    samples = [sample for gang in held for sample in gang.used.values()]
    given = Gang.of(replica for gang in held for replica in gang.gang)
    view = AgentView(
        agent_id=info.agent_id,
        name=info.name,
        runtime=info.runtime,
        runtimes=tuple(runtime.model_copy(update={"replica_environment": {}}) for runtime in info.runtimes),
        capacity_mode=info.capacity_mode,
        kind=info.kind,
        version=info.version,
        capacity=info.capacity,
        host=info.host,
        draining=row.draining,
        drain_reason=row.drain_reason,
        failures=tuple(f"{failure.job} ({failure.reason})" for failure in recent(failures, now)),
        disks=info.disks,
        mounts=tuple(_visible_mounts(info.mounts, visible)),
        restored=row.restored,
        alive=not lease.is_silent,
        lease=_lease_view(lease, now),
        last_seen=row.last_seen,
        runs=sum(not run.orphaned for run in runs),
        cpus_given=given.vcpus,
        memory_given_bytes=given.memory_bytes,
        gpus_given=tuple(gpu for gang in held for replica in gang.gang for gpu in replica.gpus),
        accelerators_given=given.devices,
        cpu_used=sum(sample.cpu or 0.0 for sample in samples),
        memory_used_bytes=sum(sample.memory_bytes for sample in samples),
        gpus_used=tuple(gpu for sample in samples for gpu in sample.gpus),
    )
    holders = {
        gpu: Holder(gang.project, gang.job_id, gang.owner, replica.task, gang.run.state is RunState.ENDED)
        for gang in held
        for replica in gang.gang
        for gpu in replica.gpus
        if gang.is_visible
    }
    used = {gpu.id: gpu for gpu in view.gpus_used}
    devices = [
        Device(gpu, gpu.id in view.gpus_given, holders.get(gpu.id), used.get(gpu.id)) for gpu in info.capacity.gpus
    ]
    return AgentLine(view, devices, runs, hidden_runs=len(held) - len(runs))


def _visible_mounts(offers: Iterable[MountOffer], visible: Visible) -> Iterator[MountOffer]:
    """The mounts that jobs of visible projects may have, without the names of other projects."""
    for offer in offers:
        projects = tuple(project for project in offer.projects if is_visible(project, visible))
        if projects or not offer.projects:
            yield offer.model_copy(update={"projects": projects})


def _held_run(held: _RunRow) -> HeldRun:
    run, gang, samples, given = held.run, held.gang, held.used.values(), Gang.of(held.gang)
    cores = [sample.cpu for sample in samples if sample.cpu is not None]
    return HeldRun(
        run_id=run.run_id,
        number=run.number,
        project=held.project,
        job_id=held.job_id,
        owner=held.owner,
        state=run.state,
        since=run.created_at,
        activity=run.activity,
        orphaned=run.state is RunState.ENDED,
        replicas=len(gang),
        up=sum(replica.state is ReplicaState.RUNNING for replica in gang),
        cpus=given.vcpus,
        memory_bytes=given.memory_bytes,
        gpus=given.devices,
        cpu_used=sum(cores) if cores else None,
        memory_used_bytes=sum(sample.memory_bytes for sample in samples) if samples else None,
    )


def _active_job(
    job: JobListEntry, held: Sequence[tuple[str, HeldRun]], trials: Mapping[JobState, int] | None
) -> ActiveJobView:
    """`held`: its agents, each with its part of the run. `trials`: those of a study by state."""
    curve = job.metrics.curve()
    values = values_of(job, ActiveJobView)
    if held:
        for name in ("replicas", "cpus", "cpu_used", "memory_bytes", "memory_used_bytes"):
            amounts = [amount for _, run in held if (amount := getattr(run, name)) is not None]
            values[name] = sum(amounts) if amounts else None
        values["running"] = sum(run.up for _, run in held)
    return ActiveJobView.model_validate(
        values
        | {
            "agent": ", ".join(agent for agent, _ in held),
            "activity": job.activity if trials is None else _trials_text(trials),
            "started_at": job.replica_started_at,
            "epoch": job.metrics.epoch,
            "epochs": job.metrics.epochs,
            "metric": curve.name if curve is not None else "",
            "value": curve.value if curve is not None else None,
        }
    )


def _trials_text(trials: Mapping[JobState, int]) -> str:
    ended = sum(number for state, number in trials.items() if state in FINAL_JOB_STATES)
    return f"trials: {ended} ended, {trials.get(JobState.RUNNING, 0)} running"


def _quotas(reader: Reader, backend: Backend) -> list[QuotaLine]:
    """Projects with limits that are named in the quota file or run something."""
    quotas = backend.quotas
    if not quotas.projects and not quotas.default:
        return []
    used: dict[str, Counter[str]] = {project: Counter() for project in quotas.projects}
    for agent in agents_now(reader, backend):
        for gang in agent.gangs:
            if not gang.ended:
                used.setdefault(gang.project, Counter()).update(used_by(gang, agent.capacity))
    return [
        QuotaLine(project, [(name, counts[name], limit) for name, limit in quotas.of(project).items()])
        for project, counts in sorted(used.items())
        if quotas.of(project)
    ]
