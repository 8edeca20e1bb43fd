"""Runs that are asked to give way, until they are stopped or may go on."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, String, delete, select
from sqlalchemy.orm import Mapped, mapped_column

from trainyard_server.storage.db.base.columns import AnyText, Table
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import JobEvents, Writer


class RequestRow(Table):
    """A run that is asked to give way: to the job with the key `for_job`, or (None) since its agent `for_agent` is
    drained. It is stopped once it has announced a checkpoint above the step `saved`, or at `until`, with this reason.
    """

    __tablename__ = "preemption_requests"

    run_id: Mapped[str] = mapped_column(String(32), primary_key=True)
    job_key: Mapped[int] = mapped_column(ForeignKey("jobs.key"), index=True)
    until: Mapped[datetime]
    saved: Mapped[int] = mapped_column(BigInteger)
    for_job: Mapped[int | None]
    for_agent: Mapped[str] = mapped_column(String(128))
    reason: Mapped[str] = mapped_column(AnyText)


JOB_EVENTS = JobEvents(rows=(RequestRow,))


def requests(reader: Reader) -> Sequence[RequestRow]:
    return reader.session.scalars(select(RequestRow).order_by(RequestRow.run_id)).all()


def add(writer: Writer, request: RequestRow) -> None:
    """Add a request, in place of one for the same run."""
    remove(writer, request.run_id)
    writer.session.add(request)


def remove(writer: Writer, run_id: str) -> None:
    writer.session.execute(delete(RequestRow).where(RequestRow.run_id == run_id))
