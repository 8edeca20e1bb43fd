"""Removal of jobs that have ended: their logs, their usage and their records.

Files go first: what a killed process leaves behind is a job whose removal can be repeated.
"""

import logging

from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.context import Backend
from trainyard_server.storage.db.models import JobRow
from trainyard_server.storage.db.repository import Event
from trainyard_server.storage.events.notifier import job_topic

logger = logging.getLogger(__name__)


def remove_job(backend: Backend, key: int, by: str) -> bool:
    """Remove a job that has ended, for `by`. False if there is none, or it has not ended. Its id is never used again.

    Raises OSError while its files cannot be removed.
    """
    job = _ended(backend, key)
    if job is None:
        return False
    _remove_files(backend, job)
    with backend.store.write() as writer:
        row = writer.find_job(key)
        if row is None:
            return False  # another process was faster
        writer.delete_job(row, backend.clock(), by)
    _remove_files(backend, job)  # a reader may just have opened its log
    logger.info("%s deleted the job %s of %s, which was %s", by, job.job_id, job.project, job.state)
    backend.notifier.publish(job_topic(key))
    return True


def remove_log(backend: Backend, key: int, reason: str) -> bool:
    """Remove the log of a job that has ended; the job stays, and so do the service's lines, with one more that has the
    reason. False if there is no such job. Raises OSError while it cannot be removed."""
    job = _ended(backend, key)
    if job is None:
        return False
    backend.logs.remove(job.project, job.job_id)
    with backend.store.write() as writer:
        row = writer.find_job(key)
        if row is None or not writer.mark_log_removed(row, backend.clock(), Event("log-removed", reason)):
            return False
    logger.info("The log of the job %s of %s was removed: %s", job.job_id, job.project, reason)
    backend.notifier.publish(job_topic(key))
    return True


def _ended(backend: Backend, key: int) -> JobRow | None:
    with backend.store.read() as reader:
        job = reader.find_job(key)
    return job if job is not None and job.state in FINAL_JOB_STATES else None


def _remove_files(backend: Backend, job: JobRow) -> None:
    backend.logs.remove(job.project, job.job_id)
    backend.usage.remove(job.project, job.job_id)
