"""Curves from TensorBoard's event files: read in threads of their own when a user opens a job's metrics."""

import logging
import threading
import time
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as WaitTimeout

from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.context import Backend
from trainyard_server.services.measurements.curves import JobCurves
from trainyard_server.services.measurements.job_files import JobFiles
from trainyard_server.storage.events.notifier import log_topic
from trainyard_server.storage.job_files.event_files import EventFiles, Scalar

_EVERY_S = 5.0
_AGAIN_S = 60.0  # after a failure
_WATCHED_S = 30.0  # after the last request
_THREADS = 2

FIRST_WAIT_S = 5.0
"""Default limit of the wait for the event files of a job that nobody has looked at before."""

CLOCK_SKEW_S = 60.0
"""Limit of the difference between the clocks of server and agent."""

logger = logging.getLogger(__name__)


def written_points(
    backend: Backend, files: JobFiles, project: str, job_id: str, event_files: EventFiles
) -> tuple[list[tuple[int, Scalar]], bool, bool]:
    """The new points in the event files of a job, each with its run, whether there are more to read, and whether the
    job had ended before. Raises TrainyardError, OSError, and ImportError without the library."""
    with backend.store.live() as reader:
        row = reader.job(project, job_id)
        if row is None:
            return [], False, True
        runs = sorted((run.created_at.timestamp() - CLOCK_SKEW_S, run.number) for run in reader.runs(row.key))
        is_final = row.state in FINAL_JOB_STATES
    scalars, more = event_files.read(files.tree(project, job_id)) if runs else ([], False)
    starts = [start for start, _ in runs]
    points = [(runs[at - 1][1], item) for item in scalars if (at := bisect_right(starts, item.time)) > 0]
    return points, more, is_final


class WrittenCurves:
    """Adds what event files have to the curves of a job. Safe to use from any thread."""

    def __init__(self, backend: Backend, files: JobFiles) -> None:
        self._backend = backend
        self._files = files
        self._pool = ThreadPoolExecutor(_THREADS, "event-files")
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def refresh(self, project: str, job_id: str, key: int, job: JobCurves, first_wait_s: float) -> None:
        """Read what is new, in the background and every few seconds as long as somebody asks. The first call waits for
        the result, up to `first_wait_s`."""
        now = time.monotonic()
        with job.lock:
            job.asked_at = now
            if job.is_reading or now < job.next_read_at or self._closed:
                return
            job.is_reading = True
            is_first = job.next_read_at == 0
        reading = self._pool.submit(self._read, project, job_id, key, job)
        if is_first:
            try:
                reading.result(first_wait_s)
            except WaitTimeout:
                return

    def _read(self, project: str, job_id: str, key: int, job: JobCurves) -> None:
        every_s, has_changed = _AGAIN_S, False
        try:
            points, more, is_final = written_points(self._backend, self._files, project, job_id, job.event_files)
            with job.lock:
                has_changed = job.add_written(points)
            every_s = 0.0 if more else float("inf") if is_final else _EVERY_S
        except TrainyardError as error:
            logger.debug("No event files of job %s of %s: %s", job_id, project, error)
        except OSError as error:
            logger.warning("The event files of job %s of %s cannot be read: %s", job_id, project, error)
        except ImportError:
            logger.warning("Event files are not read: pip install 'trainyard[tensorboard]'")
        finally:
            with job.lock:
                job.is_reading = False
                job.next_read_at = time.monotonic() + every_s
                is_watched = time.monotonic() - job.asked_at < _WATCHED_S
        if has_changed:
            self._backend.notifier.publish(log_topic(key))
        if is_watched and every_s < _AGAIN_S and not self._closed:
            timer = threading.Timer(every_s, self._again, (project, job_id, key, job))
            timer.daemon = True
            timer.start()

    def _again(self, project: str, job_id: str, key: int, job: JobCurves) -> None:
        with job.lock:
            if job.is_reading or self._closed:
                return
            job.is_reading = True
        self._pool.submit(self._read, project, job_id, key, job)
