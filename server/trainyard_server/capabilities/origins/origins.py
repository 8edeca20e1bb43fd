"""Use cases of origins: the client that submits a job records its origin once; everybody who sees the job reads it."""

from trainyard_protocol.answers.origin import JobOrigin, OriginView
from trainyard_protocol.errors import AlreadyExists, FailedPrecondition, NotFound
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.services.jobs.known_jobs import check_change, known_job
from trainyard_server.storage.db.tables import origins as rows
from trainyard_server.storage.events.notifier import job_topic


class Origins:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def set(self, caller: Caller, project: str, job_id: str, origin: JobOrigin) -> None:
        """Store the origin of a job. The same one again changes nothing.

        Raises PermissionDenied for a job that the caller may not change, AlreadyExists where another origin is
        recorded, FailedPrecondition for a trial, NotFound.
        """
        with self._backend.store.write(caller.name) as writer:
            job = known_job(writer, project, job_id)
            check_change(caller, job)
            if job.study_key is not None:
                study = job.job_id.partition(".")[0]
                raise FailedPrecondition(f"{job_id} is a trial of {study}, and has the origin of that.")
            stored = rows.origin(writer, job)
            if stored is None:
                rows.add(writer, job, origin)
            elif stored != origin:
                raise AlreadyExists(f"The origin of {job_id} is recorded, and does not change afterwards.")
        self._backend.notifier.publish(job_topic(job.key))

    def get(self, project: str, job_id: str) -> OriginView:
        """The origin of a job with its diff, of a trial that of its study, and what its last run resolved. Raises
        NotFound where nothing is known."""
        with self._backend.store.read() as reader:
            job = known_job(reader, project, job_id)
            origin, resolved = rows.origin(reader, job), rows.resolved(reader, job)
        if origin is None and resolved is None:
            raise NotFound(
                f"The job {job_id} has no origin: `trainyard jobs submit training`, `jobs rerun` and the Python client "
                "record it, other clients do not."
            )
        versions, run = resolved or (None, 0)
        return OriginView(**dict(origin or JobOrigin()), resolved=versions, run=run)

    def diff(self, project: str, job_id: str) -> str:
        """The changes that the working tree had. Raises NotFound where there are none."""
        git = self.get(project, job_id).git
        if git is None or not git.diff:
            raise NotFound(f"The origin of {job_id} has no diff.{f' {git.diff_note}' if git else ''}")
        return git.diff
