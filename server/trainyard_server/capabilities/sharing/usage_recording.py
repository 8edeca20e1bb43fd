"""Usage records: written for each run after its end, and before its job is deleted."""

from collections.abc import Collection, Sequence

from trainyard_protocol.states import Outcome
from trainyard_server.capabilities.sharing import store, usage
from trainyard_server.capabilities.sharing.store import UnrecordedRun
from trainyard_server.capabilities.sharing.tables import UsageRow
from trainyard_server.capabilities.sharing.usage import HeldShare
from trainyard_server.context import Backend
from trainyard_server.storage.db.base.models import ReplicaRow
from trainyard_server.storage.streams import Stream


class UsageRecording:
    """Call `step` now and then, in one thread of one server."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def step(self) -> bool:
        """Record runs that have ended. Whether there may be more of them."""
        with self._backend.store.read() as reader:
            runs = store.unrecorded(reader)
        self._record(runs)
        return len(runs) == store.AT_ONCE

    def record_jobs(self, keys: Collection[int]) -> None:
        """Record the runs of jobs that are to be deleted."""
        with self._backend.store.read() as reader:
            runs = store.unrecorded_of(reader, keys)
        self._record(runs)

    def _record(self, runs: Sequence[UnrecordedRun]) -> None:
        if not runs:
            return
        records = [self._row(run) for run in runs]  # files are read before the transaction
        with self._backend.store.write() as writer:
            still = {run.run.run_id for run in store.unrecorded_of(writer, {run.run.job_key for run in runs})}
            store.add(writer, [record for record in records if record.run_id in still])

    def _row(self, unrecorded: UnrecordedRun) -> UsageRow:
        run, job, replicas = unrecorded
        ended = run.ended_at or run.created_at
        shares = [share_of(replica) for replica in replicas]
        return UsageRow(
            run_id=run.run_id,
            project=job.project,
            owner=job.owner,
            job_id=job.job_id,
            labels=job.labels,
            day=store.day_of(ended),
            ended_at=ended,
            cpu_s=usage.cpu_seconds(shares, ended),
            gpu_s=usage.gpu_seconds(shares, ended),
            idle_gpu_s=self._idle(unrecorded),
            wait_s=wait_of(unrecorded),
            has_failed=(run.verdict or {}).get("outcome") == Outcome.FAILED,
        )

    def _idle(self, unrecorded: UnrecordedRun) -> float | None:
        run, job, replicas = unrecorded
        idle = [
            idle_seconds(self._backend, job.project, job.job_id, Stream(run.number, replica.task), share_of(replica))
            for replica in replicas
        ]
        measured = [seconds for seconds in idle if seconds is not None]
        return sum(measured) if measured else None


def wait_of(unrecorded: UnrecordedRun) -> float | None:
    """The seconds for which a job waited for this run, its first; None for another run, and for a further part."""
    run, job, _ = unrecorded
    if run.number != 1 or run.part_of is not None:
        return None
    is_queued_again = job.queued_at > run.created_at
    return (run.created_at - (job.created_at if is_queued_again else job.queued_at)).total_seconds()


def share_of(replica: ReplicaRow) -> HeldShare:
    """The resources of a replica, and when it had them."""
    cpus = len(replica.cpus) or replica.vcpus
    gpus = len(replica.gpus) or replica.accelerator_count
    return HeldShare(cpus, gpus, replica.started_at, replica.finished_at)


def gpu_points(
    backend: Backend, project: str, job_id: str, stream: Stream, share: HeldShare
) -> list[tuple[float, Sequence[float | None]]]:
    """The measurements of a replica's GPUs: the time of each in seconds, and the utilization of each GPU."""
    points = backend.usage.series(project, job_id, stream, share.gpus, backend.settings.usage_points)
    return [(point.time, [gpu.utilization for gpu in point.gpus]) for point in points]


def idle_seconds(backend: Backend, project: str, job_id: str, stream: Stream, share: HeldShare) -> float | None:
    """The GPU-seconds in which the GPUs of a replica were idle; None if nobody measured them."""
    if not share.gpus:
        return None
    return usage.idle_gpu_seconds(gpu_points(backend, project, job_id, stream, share))
