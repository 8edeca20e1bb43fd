"""The machines and the queue as people look at them: who holds what, what of it is used, and who waits for it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.states import JobState, ReplicaState, RunState
from trainyard_protocol.sync import AgentInfo, Gpu
from trainyard_protocol.usage import GpuUsage, UsageSample
from trainyard_protocol.views import AgentView
from trainyard_server.context import Backend
from trainyard_server.control.snapshots import agents_now, live_runs, queued_snapshots
from trainyard_server.domain.scheduling.quotas import used_by
from trainyard_server.domain.scheduling.resources import needs
from trainyard_server.services.usage import newest
from trainyard_server.storage.db.models import AgentRow, JobRow, ReplicaRow, RunRow
from trainyard_server.storage.db.repository import Reader

QUEUE_PAGE = 50
"""How many jobs of the queue are shown at once."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Which replica holds a device. `left_over`: its run is over, and what it started still lives."""

    project: str
    job_id: str
    task: str
    left_over: bool


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of an agent. `use` is None where nobody holds it, and where it was not measured."""

    gpu: Gpu
    holder: Holder | None
    use: GpuUsage | None


@dataclass(frozen=True, slots=True)
class HeldRun:
    """A run on an agent, what it was given and what is used of it: None where nothing was measured. Of `replicas`
    so many are `up`."""

    run_id: str
    number: int
    project: str
    job_id: str
    state: RunState
    since: datetime
    activity: str
    left_over: bool
    replicas: int
    up: int
    cpus: int
    memory_bytes: int
    gpus: int
    cpu_used: float | None
    memory_used_bytes: int | None


@dataclass(frozen=True, slots=True)
class AgentLine:
    view: AgentView
    devices: Sequence[Device]
    runs: Sequence[HeldRun]


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A job that waits. `position` 0: the scheduler has not looked at it, or it rests after a failed run."""

    key: int
    project: str
    job_id: str
    owner: str
    priority: int
    position: int
    needs: str
    waiting: str
    since: datetime


@dataclass(frozen=True, slots=True)
class QuotaLine:
    """What a project uses of what it may: name, used, limit."""

    project: str
    amounts: Sequence[tuple[str, int, int]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """`page` of `pages` of the queue, which has `waiting` jobs; the counts are those of the agents and of all jobs."""

    agents: Sequence[AgentLine]
    queue: Sequence[QueueLine]
    page: int
    pages: int
    counts: Mapping[JobState, int]
    quotas: Sequence[QuotaLine]
    now: datetime

    @property
    def waiting(self) -> int:
        return self.counts.get(JobState.QUEUED, 0)


class Clusters:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def look(self, page: int = 1) -> Cluster:
        """A page beyond the last is the last."""
        backend = self._backend
        with backend.store.read() as reader:
            counts = reader.job_counts()
            pages = max(1, -(-counts.get(JobState.QUEUED, 0) // QUEUE_PAGE))
            page = min(max(1, page), pages)
            queued = reader.queue_page((page - 1) * QUEUE_PAGE, QUEUE_PAGE)
            agents = agent_lines(reader, backend)
            quotas = _quotas(reader, backend)
        return Cluster(
            agents=agents,
            queue=[_queue_line(job) for job in queued],
            page=page,
            pages=pages,
            counts=counts,
            quotas=quotas,
            now=backend.clock(),
        )


@dataclass(frozen=True, slots=True)
class _Held:
    """A run on an agent as it is in the database, and what was measured of its replicas."""

    project: str
    job_id: str
    run: RunRow
    gang: Sequence[ReplicaRow]
    used: Mapping[str, UsageSample]


def agent_lines(reader: Reader, backend: Backend) -> list[AgentLine]:
    """Every agent, in the order in which they came, with what runs there and what is left over there."""
    rows = reader.agents()
    live = live_runs(reader)
    over = [run for row in rows for run in map(reader.run, row.leftovers) if run is not None]
    gangs: dict[str, list[ReplicaRow]] = {}
    for replica in reader.replicas([run.run_id for run in over]):
        gangs.setdefault(replica.run_id, []).append(replica)
    everything = [*live, *((run, gangs.get(run.run_id, [])) for run in over)]
    names = reader.names({run.job_key for run, _ in everything})
    held: dict[str, list[_Held]] = {}
    for run, gang in everything:
        project, job_id = names[run.job_key]
        used = newest(backend, project, job_id, run, gang)
        held.setdefault(run.agent_id, []).append(_Held(project, job_id, run, gang, used))
    return [_agent_line(row, held.get(row.agent_id, ()), backend.hearing.is_alive(row)) for row in rows]


def _agent_line(row: AgentRow, held: Sequence[_Held], alive: bool) -> AgentLine:
    info = AgentInfo.model_validate(row.info)
    runs = [_held_run(one) for one in held]
    samples = [sample for one in held for sample in one.used.values()]
    given = [replica for one in held for replica in one.gang]
    view = AgentView(
        agent_id=info.agent_id,
        name=info.name,
        runtime=info.runtime,
        capacity_mode=info.capacity_mode,
        version=info.version,
        capacity=info.capacity,
        alive=alive,
        last_seen=row.last_seen,
        runs=sum(not run.left_over for run in runs),
        cpus_given=len({cpu for replica in given for cpu in replica.cpus}),
        memory_given_bytes=sum(replica.memory_bytes for replica in given),
        gpus_given=tuple(gpu for replica in given for gpu in replica.gpus),
        cpu_used=sum(sample.cpu or 0.0 for sample in samples),
        memory_used_bytes=sum(sample.memory_bytes for sample in samples),
        gpus_used=tuple(gpu for sample in samples for gpu in sample.gpus),
    )
    holders = {
        gpu: Holder(one.project, one.job_id, replica.task, one.run.state is RunState.ENDED)
        for one in held
        for replica in one.gang
        for gpu in replica.gpus
    }
    used = {gpu.id: gpu for gpu in view.gpus_used}
    devices = [Device(gpu, holders.get(gpu.id), used.get(gpu.id)) for gpu in info.capacity.gpus]
    return AgentLine(view, devices, runs)


def _held_run(held: _Held) -> HeldRun:
    run, gang, samples = held.run, held.gang, held.used.values()
    cores = [sample.cpu for sample in samples if sample.cpu is not None]
    return HeldRun(
        run_id=run.run_id,
        number=run.number,
        project=held.project,
        job_id=held.job_id,
        state=run.state,
        since=run.created_at,
        activity=run.activity,
        left_over=run.state is RunState.ENDED,
        replicas=len(gang),
        up=sum(replica.state is ReplicaState.RUNNING for replica in gang),
        cpus=len({cpu for replica in gang for cpu in replica.cpus}),
        memory_bytes=sum(replica.memory_bytes for replica in gang),
        gpus=sum(len(replica.gpus) for replica in gang),
        cpu_used=sum(cores) if cores else None,
        memory_used_bytes=sum(sample.memory_bytes for sample in samples) if samples else None,
    )


def _queue_line(job: JobRow) -> QueueLine:
    gang = next((queued.gang for queued in queued_snapshots([job])), ())  # what cannot be read has none
    return QueueLine(
        key=job.key,
        project=job.project,
        job_id=job.job_id,
        owner=job.owner,
        priority=job.priority,
        position=job.position,
        needs=needs(gang) if gang else "",
        waiting=job.waiting,
        since=job.queued_at,
    )


def _quotas(reader: Reader, backend: Backend) -> list[QuotaLine]:
    """Of the projects that have limits those that are named in the file, and those that run something."""
    quotas = backend.quotas
    if not quotas.projects and not quotas.default:
        return []
    used: dict[str, Counter[str]] = {project: Counter() for project in quotas.projects}
    for agent in agents_now(reader, backend):
        for gang in agent.gangs:
            if not gang.over:
                used.setdefault(gang.project, Counter()).update(used_by(gang, agent.capacity))
    return [
        QuotaLine(project, [(name, counts[name], limit) for name, limit in quotas.of(project).items()])
        for project, counts in sorted(used.items())
        if quotas.of(project)
    ]
