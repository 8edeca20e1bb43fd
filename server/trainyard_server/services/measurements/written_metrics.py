"""Metrics of jobs, recorded for tables: those in event files of running jobs every minute, and all of a job once it has
ended, exactly as its curves have them.

Curves are drawn from logs and event files when somebody looks (`curves`); this is what the list of jobs has of them.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.job.cluster import PRIMARY
from trainyard_server.context import Backend
from trainyard_server.domain.metrics.results import MetricResult, settled
from trainyard_server.domain.metrics.sources import MetricSource
from trainyard_server.domain.metrics.summary import MetricSummary
from trainyard_server.services.measurements.job_files import JobFiles
from trainyard_server.services.measurements.metrics import Metrics
from trainyard_server.services.measurements.written_curves import written_points
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.tables import job_values
from trainyard_server.storage.db.tables.job_values import MeasuredJob
from trainyard_server.storage.events.notifier import progress_topic
from trainyard_server.storage.failures import FailureLog
from trainyard_server.storage.job_files.event_files import EventFiles, Scalar

_EVERY_S = 60.0  # of a job that runs
_COMPLETE_IN = timedelta(minutes=10)  # after a job's end, its logs
_TRIES_FOR = timedelta(days=1)  # after a job's end, where its files cannot be read
_JOBS = 50  # of each kind in one round

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Files:
    """The event files of a job, and when they were last read."""

    event_files: EventFiles = field(default_factory=EventFiles)
    parameters: dict[str, str] = field(default_factory=dict)
    has_metrics: bool = False
    has_ended: bool = False
    """Whether they were read after the job's end."""
    read_at: float = float("-inf")


class WrittenMetrics:
    """Call `step` now and then, in one thread of one server."""

    def __init__(self, backend: Backend, files: JobFiles, metrics: Metrics) -> None:
        self._backend = backend
        self._files = files
        self._metrics = metrics
        self._jobs: dict[int, _Files] = {}
        self._lacks_library = False
        self._failures = FailureLog(logger)

    def step(self, now_s: float) -> None:
        """Read what is due at this time of a monotonic clock."""
        with self._backend.store.read() as reader:
            now = self._backend.clock()
            running, ended = job_values.to_measure(reader, now - _TRIES_FOR, now - _COMPLETE_IN, _JOBS)
        for job in running:
            if now_s - self._jobs.setdefault(job.key, _Files()).read_at >= _EVERY_S:
                self._record(job, now_s)
        for job in ended:
            is_due = now_s - self._jobs.setdefault(job.key, _Files()).read_at >= _EVERY_S
            if (is_due or not self._jobs[job.key].has_ended) and self._record(job, now_s) and self._settle(job):
                del self._jobs[job.key]
            else:
                self._jobs[job.key].has_ended = True
        current = {job.key for job in (*running, *ended)}
        self._jobs = {key: files for key, files in self._jobs.items() if key in current}

    def _record(self, job: MeasuredJob, now_s: float) -> bool:
        """Record what is new in the event files of a job. False if they could not be read."""
        files = self._jobs[job.key]
        files.read_at = now_s
        try:
            scalars = self._read(job, files.event_files)
        except TrainyardError as error:
            logger.debug("No event files of job %s of %s: %s", job.job_id, job.project, error)
            return True
        except OSError as error:
            self._failures.record("The event files of jobs cannot be read", error)
            return False
        parameters = dict(files.event_files.hparams)
        if scalars or parameters != files.parameters:
            files.has_metrics = files.has_metrics or bool(scalars)
            with self._backend.store.write() as writer:
                job_values.record(writer, {job.key: _summaries(scalars)})
                if parameters != files.parameters:
                    job_values.add_parameters(writer, job.key, parameters)
            files.parameters = parameters
            self._backend.notifier.publish(progress_topic(job.key))
        return True

    def _settle(self, job: MeasuredJob) -> bool:
        """Record all that a job has measured as its curves have it. False if they could not be read."""
        with_files = self._jobs[job.key].has_metrics
        try:
            metrics = self._metrics.settled(job.project, job.job_id, job.key, with_files=with_files)
        except (OSError, TrainyardError) as error:
            self._failures.record("The metrics of jobs that have ended cannot be read", error)
            return False
        summaries = {metric.result.name: metric.result.summary(metric.source) for metric in metrics}
        with self._backend.store.write() as writer:
            if job_values.lacks_points(writer, job.key) or self._lost_points(writer, job.key):
                job_values.record(writer, {job.key: summaries})
            else:
                job_values.settle(writer, job.key, summaries)
                self._settle_digest(writer, job, [metric.result for metric in metrics])
            job_values.mark_measured(writer, job.key)
        self._backend.notifier.publish(progress_topic(job.key))
        return True

    def _lost_points(self, reader: Reader, key: int) -> bool:
        sources = (capability.curves for capability in self._backend.capabilities)
        return any(source.lacks_points(reader, key) for source in sources if source is not None)

    def _settle_digest(self, writer: Writer, job: MeasuredJob, results: Sequence[MetricResult]) -> None:
        """Put the results into the digest of the primary, which lists of jobs show."""
        primary = job_values.primary_digest(writer, job.key)
        own = [metric for metric in results if metric.task == PRIMARY.name]
        if primary is not None and own and not job.is_trial:
            values = {"metrics": settled(primary.digest, own)}
            writer.record_progress(primary.run_id, PRIMARY.name, values, complete=True)
            writer.changes.jobs.add(job.key)

    def _read(self, job: MeasuredJob, event_files: EventFiles) -> Sequence[Scalar]:
        """The new scalars that runs of the job have written. Raises TrainyardError and OSError."""
        if self._lacks_library:
            return ()
        scalars, more = list[Scalar](), True
        try:
            while more:
                points, more, _ = written_points(self._backend, self._files, job.project, job.job_id, event_files)
                scalars += (scalar for _, scalar in points)
        except ImportError:
            self._lacks_library = True
            logger.info("Event files are not read: pip install 'trainyard[tensorboard]'")
        return scalars


def _summaries(scalars: Sequence[Scalar]) -> dict[str, MetricSummary]:
    values: dict[str, list[float]] = {}
    newest: dict[str, tuple[int, float]] = {}
    for name, step, value, _ in scalars:
        values.setdefault(name, []).append(value)
        if name not in newest or step >= newest[name][0]:
            newest[name] = step, value
    return {name: MetricSummary.of(*newest[name], values[name], source=MetricSource.WRITTEN) for name in values}
