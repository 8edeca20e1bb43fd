"""Removal of jobs that have ended: their logs, their usage and their records.

Files go first: what a killed process leaves behind is a job whose removal can be repeated.
"""

import logging

from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.context import Backend
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.tables import studies
from trainyard_server.storage.events.notifier import job_topic

logger = logging.getLogger(__name__)

RETENTION = "retention"
"""The one who deletes, in place of a person."""


def remove_job(backend: Backend, key: int, by: str) -> bool:
    """Remove a job that has ended, for `by`, a study with its trials. False if there is none, or it has not ended. Its
    id is never used again.

    Raises OSError while its files cannot be removed, also LockTimeout while a backup begins.
    """
    with backend.store.read() as reader:
        job = reader.find_job(key)
    if job is None or job.state not in FINAL_JOB_STATES:
        return False
    with backend.removal_lock.removing():
        with backend.store.read() as reader:
            everything = [*studies.trial_jobs(reader, key), job]
        for capability in backend.capabilities:
            if capability.before_removal is not None:
                capability.before_removal(backend, [ended.key for ended in everything])
        for ended in everything:
            _remove_files(backend, ended)
        with backend.store.write() as writer:
            row = writer.find_job(key)
            if row is None:
                return False  # another process was faster
            studies.delete_with_trials(writer, key, backend.clock(), by)
            writer.delete_job(row, backend.clock(), by)
        for ended in everything:
            _remove_files(backend, ended)  # a reader may just have opened its log
    logger.info("%s deleted the job %s of %s, which was %s", by, job.job_id, job.project, job.state)
    backend.notifier.publish(job_topic(key))
    return True


def _remove_files(backend: Backend, job: JobRow) -> None:
    backend.logs.remove(job.project, job.job_id)
    backend.usage.remove(job.project, job.job_id)
