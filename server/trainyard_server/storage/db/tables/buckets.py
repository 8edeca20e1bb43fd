"""Buckets and their projects."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select

from trainyard_server.storage.db.base.models import BucketRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer


def project_of(reader: Reader, bucket: str) -> str | None:
    """The bucket's project; None for a bucket that was not made here."""
    return reader.session.scalar(select(BucketRow.project).filter_by(name=bucket))


def of_project(reader: Reader, project: str) -> Sequence[BucketRow]:
    return reader.session.scalars(select(BucketRow).filter_by(project=project).order_by(BucketRow.name)).all()


def save(writer: Writer, bucket: str, project: str, by: str, now: datetime) -> None:
    """Note a new bucket, in place of one of that name that was deleted elsewhere."""
    remove(writer, bucket)
    writer.session.add(BucketRow(name=bucket, project=project, made_by=by, made_at=now))
    writer.session.flush()


def remove(writer: Writer, bucket: str) -> None:
    writer.session.execute(delete(BucketRow).filter_by(name=bucket))
