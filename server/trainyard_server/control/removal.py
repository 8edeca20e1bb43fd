"""Removal of jobs that have ended: their logs, their usage and their records.

Files go first: what a killed process leaves behind is a job whose removal can be repeated.
"""

import logging

from trainyard_server.context import Backend
from trainyard_server.storage.db.models import JobRow
from trainyard_server.storage.events.notifier import job_topic

logger = logging.getLogger(__name__)


def remove_job(backend: Backend, job: JobRow, by: str) -> bool:
    """Remove a job that has ended, for `by`. False if it has been removed already. Its id is never used again.

    Raises OSError while its files cannot be removed.
    """
    _remove_files(backend, job)
    with backend.store.write() as writer:
        row = writer.find_job(job.key)
        if row is None:
            return False
        writer.delete_job(row, backend.clock(), by)
    _remove_files(backend, job)  # a reader may just have opened its log
    logger.info("%s deleted the job %s of %s, which was %s", by, job.job_id, job.project, job.state)
    backend.notifier.publish(job_topic(job.key))
    return True


def _remove_files(backend: Backend, job: JobRow) -> None:
    backend.logs.remove(job.project, job.job_id)
    backend.usage.remove(job.project, job.job_id)
