"""Metrics in the event files of jobs, recorded for tables: of running jobs every minute, of others after their end.

Curves are drawn from event files when somebody looks (`written_curves`); this is what the list of jobs knows of them.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from trainyard_protocol.errors import TrainyardError
from trainyard_server.context import Backend
from trainyard_server.domain.metrics.summary import MetricSummary
from trainyard_server.services.measurements.job_files import JobFiles
from trainyard_server.services.measurements.written_curves import CLOCK_SKEW_S
from trainyard_server.storage.db.tables import job_values
from trainyard_server.storage.db.tables.job_values import MeasuredJob
from trainyard_server.storage.failures import FailureLog
from trainyard_server.storage.job_files.event_files import EventFiles, Scalar

_EVERY_S = 60.0  # of a job that runs
_TRIES_FOR = timedelta(days=1)  # after a job's end, where its files cannot be read
_JOBS = 50  # of each kind in one round

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Files:
    """The event files of a job, and when they were last read."""

    event_files: EventFiles = field(default_factory=EventFiles)
    read_at: float = float("-inf")


class WrittenMetrics:
    """Call `step` now and then, in one thread of one server."""

    def __init__(self, backend: Backend, files: JobFiles) -> None:
        self._backend = backend
        self._files = files
        self._jobs: dict[int, _Files] = {}
        self._lacks_library = False
        self._failures = FailureLog(logger)

    def step(self, now_s: float) -> None:
        """Read what is due at this time of a monotonic clock."""
        with self._backend.store.read() as reader:
            running, ended = job_values.to_measure(reader, self._backend.clock() - _TRIES_FOR, _JOBS)
        for job in running:
            if now_s - self._jobs.setdefault(job.key, _Files()).read_at >= _EVERY_S:
                self._record(job, now_s)
        for job in ended:
            if now_s - self._jobs.setdefault(job.key, _Files()).read_at >= _EVERY_S and self._record(job, now_s):
                with self._backend.store.write() as writer:
                    job_values.mark_measured(writer, job.key)
                del self._jobs[job.key]
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
        if scalars:
            with self._backend.store.write() as writer:
                printed = {name.casefold() for name in job_values.printed_names(writer, job.key)}
                written = {name: value for name, value in _summaries(scalars).items() if name.casefold() not in printed}
                job_values.record(writer, {job.key: written})
        return True

    def _read(self, job: MeasuredJob, event_files: EventFiles) -> Sequence[Scalar]:
        """The new scalars that runs of the job have written. Raises TrainyardError and OSError."""
        if self._lacks_library:
            return ()
        with self._backend.store.read() as reader:
            starts = sorted(run.created_at.timestamp() - CLOCK_SKEW_S for run in reader.runs(job.key))
        if not starts:
            return ()
        tree, scalars, more = self._files.tree(job.project, job.job_id), list[Scalar](), True
        try:
            while more:
                new, more = event_files.read(tree)
                scalars += (scalar for scalar in new if bisect_right(starts, scalar.time))
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
    return {name: MetricSummary.of(*newest[name], values[name]) for name in values}
