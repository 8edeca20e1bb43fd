"""Origins of jobs. That of a trial is its study's."""

from sqlalchemy import select

from trainyard_protocol.views.origin import JobOrigin, OriginSummary
from trainyard_server.storage.db.base.models import JobOriginRow, JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer


def origin(reader: Reader, job: JobRow) -> JobOrigin | None:
    """The whole origin, with its diff; None where it was not recorded."""
    row = reader.session.get(JobOriginRow, job.study_key or job.key)
    if row is None:
        return None
    recorded = JobOrigin.model_validate(row.content)
    if recorded.git is None:
        return recorded
    return recorded.model_copy(update={"git": recorded.git.model_copy(update={"diff": row.diff})})


def summary(reader: Reader, job: JobRow) -> OriginSummary | None:
    query = select(JobOriginRow.summary).where(JobOriginRow.job_key == (job.study_key or job.key))
    stored = reader.session.scalar(query)
    return None if stored is None else OriginSummary.model_validate(stored)


def add(writer: Writer, job: JobRow, recorded: JobOrigin) -> None:
    """Store the origin of a job that has none."""
    writer.session.add(
        JobOriginRow(
            job_key=job.key,
            summary=recorded.summary().model_dump(mode="json"),
            content=recorded.model_dump(mode="json", exclude={"git": {"diff"}}),
            diff=recorded.git.diff if recorded.git else "",
        )
    )
    writer.session.flush()
