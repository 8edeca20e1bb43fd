"""Origins of jobs. That of a trial is its study's."""

from collections.abc import Collection

from sqlalchemy import func, select

from trainyard_protocol.answers.origin import JobOrigin, OriginSummary
from trainyard_protocol.wire.observations import ResolvedRun
from trainyard_server.storage.db.base.models import JobOriginRow, JobRow, RunRow
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
    return summaries(reader, [job.key]).get(job.key)


def summaries(reader: Reader, keys: Collection[int]) -> dict[int, OriginSummary]:
    """The origins of those of these jobs that have one; of a trial that of its study."""
    query = select(JobRow.key, JobOriginRow.summary).where(JobRow.key.in_(keys))
    rows = query.join(JobOriginRow, JobOriginRow.job_key == func.coalesce(JobRow.study_key, JobRow.key))
    return {key: OriginSummary.model_validate(stored) for key, stored in reader.session.execute(rows)}


def resolved(reader: Reader, job: JobRow) -> tuple[ResolvedRun, int] | None:
    """The versions that the last run of a job has, of those that are known, and its number."""
    query = select(RunRow.resolved, RunRow.number).filter_by(job_key=job.key, beside=None, part_of=None)
    row = reader.session.execute(query.where(RunRow.has_resolved).order_by(RunRow.number.desc()).limit(1)).first()
    return None if row is None else (ResolvedRun.model_validate_json(row[0]), row[1])


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
