"""Jobs by their names: found, or refused; and who may change one."""

import re

from trainyard_protocol.errors import InvalidArgument, NotFound, PermissionDenied, Violation
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader

_PROJECT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}")


def check_project(project: str) -> None:
    """Raises InvalidArgument for what cannot be a project's name."""
    if not _PROJECT.fullmatch(project):
        raise InvalidArgument(
            Violation("parent", f"{project!r} is not a project: letters, digits, '_', '.', ':' and '-'.")
        )


def known_job(reader: Reader, project: str, job_id: str) -> JobRow:
    """Raises NotFound."""
    job = reader.job(project, job_id)
    if job is not None:
        return job
    deleted = reader.deleted_job(project, job_id)
    when = "" if deleted is None else f" It was deleted on {deleted.deleted_at:%Y-%m-%d} by {deleted.deleted_by}."
    raise NotFound(f"Field: name Error: The job projects/{project}/jobs/{job_id} was not found.{when}")


def check_change(caller: Caller, job: JobRow) -> None:
    """Raises PermissionDenied."""
    if caller.may_change(job.project, job.owner):
        return
    ownership = f"belongs to {job.owner}" if job.owner else "has no known owner"
    who = "A submitter of that name, or an admin," if job.owner else "An admin"
    raise PermissionDenied(
        f"You are {caller.described_in(job.project)}; the job {job.job_id} {ownership}. {who} may change it."
    )
