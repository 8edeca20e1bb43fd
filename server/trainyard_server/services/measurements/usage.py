"""Resource usage of replicas: samples from agents, series over time, and the newest sample."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from trainyard_protocol.answers.usage import (
    GpuSeries,
    GpuUsage,
    UsageBatch,
    UsageReceipt,
    UsageSample,
    UsageSeries,
    UsageView,
)
from trainyard_protocol.errors import InvalidArgument, NotFound, Violation
from trainyard_protocol.states import ReplicaState
from trainyard_server.context import Backend
from trainyard_server.domain.access.agent_keys import AgentKey
from trainyard_server.domain.reports import bounded
from trainyard_server.services.agents.agent_keys import agents_with
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.storage.db.base.models import ReplicaRow, RunRow
from trainyard_server.storage.events.notifier import USAGE_TOPIC, usage_topic
from trainyard_server.storage.logs.store import Stream
from trainyard_server.storage.usage.records import NOTHING, GpuPoint, UsagePoint

DEFAULT_POINTS = 300
LEAST_POINTS, MOST_POINTS = 2, 5000


class UsageQueries:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def record(self, batch: UsageBatch, key: AgentKey) -> UsageReceipt:
        """Store the samples of this agent's replicas whose run has not ended. Raises PermissionDenied, and OSError
        where the disk fails."""
        backend = self._backend
        batch = bounded(batch, backend.clock())
        with backend.store.read() as reader:
            reported = {sample.run_id for sample in batch.samples}
            runs = {
                run.run_id: run
                for agent_id in agents_with(reader, key)
                for run in reader.live_runs(agent_id)
                if run.run_id in reported
            }
            jobs = {run_id: reader.job_by_key(run.job_key) for run_id, run in runs.items()}
            agents = {run.agent_id: reader.agent(run.agent_id) for run in runs.values()}
            names = {key: "" if agent is None else str(agent.info["name"]) for key, agent in agents.items()}
            gangs = {(replica.run_id, replica.task): replica for replica in reader.replicas(runs)}
        points_by_run: dict[str, dict[Stream, list[UsagePoint]]] = {}
        for sample in batch.samples:
            replica = gangs.get((sample.run_id, sample.task))
            if replica is not None:
                stream = Stream(runs[sample.run_id].number, sample.task)
                point = _point(sample, replica.gpus)
                points_by_run.setdefault(sample.run_id, {}).setdefault(stream, []).append(point)
                run, job = runs[sample.run_id], jobs[sample.run_id]
                for gpu in sample.gpus:
                    if gpu.utilization is not None and gpu.id in replica.gpus:
                        name = f"{job.project}/{job.job_id}"
                        backend.observations.gpu_measured(names[run.agent_id], gpu.id, name, gpu.utilization)
        for run_id, points in points_by_run.items():
            backend.usage.add(jobs[run_id].project, jobs[run_id].job_id, points)
        if points_by_run:
            backend.notifier.publish(USAGE_TOPIC, *(usage_topic(runs[run_id].job_key) for run_id in points_by_run))
        return UsageReceipt(taken=sum(len(samples) for points in points_by_run.values() for samples in points.values()))

    def view(
        self,
        project: str,
        job_id: str,
        run_number: int | None = None,
        points: int = DEFAULT_POINTS,
        tasks: Collection[str] | None = None,
    ) -> UsageView:
        """Usage of a run's replicas over time, at most `points` of each. By default the latest run and all `tasks`.

        Raises NotFound for an unknown job or run, InvalidArgument for too few or too many points.
        """
        if not LEAST_POINTS <= points <= MOST_POINTS:
            raise InvalidArgument(Violation("points", f"must be {LEAST_POINTS} to {MOST_POINTS}; this is {points}."))
        with self._backend.store.read() as reader:
            key = known_job(reader, project, job_id).key
            runs = [*reader.restarts([key]), *reader.runs(key)]
            run = next((run for run in reversed(runs) if run_number in (None, run.number)), None)
            gang = reader.gang(run) if run is not None else ()
        if run is None:
            if run_number is not None:
                raise NotFound(f"The job {job_id} has no run {run_number}.")
            return UsageView(project=project, job_id=job_id)
        return UsageView(
            project=project,
            job_id=job_id,
            run=run.number,
            replicas=tuple(
                self._series(project, job_id, run, replica, points)
                for replica in gang
                if tasks is None or replica.task in tasks
            ),
        )

    def _series(self, project: str, job_id: str, run: RunRow, replica: ReplicaRow, most: int) -> UsageSeries:
        stream = Stream(run.number, replica.task)
        points = self._backend.usage.series(project, job_id, stream, len(replica.gpus), most)
        return UsageSeries(
            task=replica.task,
            cpus=replica.vcpus,
            memory_given=replica.memory_bytes,
            time=tuple(_time(point.time) for point in points),
            cpu=tuple(point.cpu for point in points),
            memory_bytes=tuple(point.memory_bytes for point in points),
            gpus={
                gpu: GpuSeries(
                    utilization=tuple(point.gpus[index].utilization for point in points),
                    memory_bytes=tuple(point.gpus[index].memory_bytes for point in points),
                    memory_total=max((point.gpus[index].memory_total or 0 for point in points), default=0),
                )
                for index, gpu in enumerate(replica.gpus)
            },
        )


def newest(
    backend: Backend, project: str, job_id: str, run: RunRow, gang: Sequence[ReplicaRow]
) -> Mapping[str, UsageSample]:
    """The newest sample of each running replica of a run, by task."""
    samples = {}
    for replica in gang:
        if replica.state is ReplicaState.RUNNING:
            stream = Stream(run.number, replica.task)
            point = backend.usage.newest(project, job_id, stream, len(replica.gpus))
            if point is not None:
                samples[replica.task] = _sample(run.run_id, replica, point)
    return samples


def _point(sample: UsageSample, gpus: Sequence[str]) -> UsagePoint:
    measured = {gpu.id: gpu for gpu in sample.gpus}
    return UsagePoint(
        sample.time.timestamp(), sample.cpu, sample.memory_bytes, tuple(_gpu_point(measured.get(gpu)) for gpu in gpus)
    )


def _gpu_point(measured: GpuUsage | None) -> GpuPoint:
    return NOTHING if measured is None else GpuPoint(measured.utilization, measured.memory_bytes, measured.memory_total)


def _sample(run_id: str, replica: ReplicaRow, point: UsagePoint) -> UsageSample:
    return UsageSample(
        run_id=run_id,
        task=replica.task,
        time=_time(point.time),
        cpu=point.cpu,
        memory_bytes=point.memory_bytes,
        gpus=tuple(
            GpuUsage(
                id=gpu,
                utilization=measured.utilization,
                memory_bytes=measured.memory_bytes or 0,
                memory_total=measured.memory_total or 0,
            )
            for gpu, measured in zip(replica.gpus, point.gpus, strict=True)
            if measured != NOTHING
        ),
    )


def _time(time: float) -> datetime:
    return datetime.fromtimestamp(time, UTC)
