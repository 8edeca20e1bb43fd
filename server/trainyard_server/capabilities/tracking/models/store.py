"""Rows of the models that programs log through MLflow."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from sqlalchemy import func, select, tuple_

from trainyard_server.capabilities.tracking.tables import LoggedModelRow
from trainyard_server.storage.db.base.models import JobRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer

MAX_MODELS = 1000
"""Limit of the models of one job."""

SEARCHED = 10_000
"""Limit of the models that a search looks at, the newest ones."""

_AT_ONCE = 200


def model(reader: Reader, key: int, number: int) -> LoggedModelRow | None:
    return reader.session.get(LoggedModelRow, (key, number))


def add_model(
    writer: Writer,
    key: int,
    source: int,
    name: str,
    model_type: str,
    tags: Mapping[str, str],
    params: Mapping[str, str],
    now: datetime,
) -> LoggedModelRow | None:
    """Add a model; None where the job has MAX_MODELS. Hold the lock of the job's row."""
    query = select(func.max(LoggedModelRow.number)).where(LoggedModelRow.job_key == key)
    number = (writer.session.scalar(query) or 0) + 1
    if number > MAX_MODELS:
        return None
    row = LoggedModelRow(
        job_key=key,
        number=number,
        source=source,
        name=name,
        model_type=model_type,
        status="LOGGED_MODEL_PENDING",
        created_at=now,
        updated_at=now,
        tags=dict(tags),
        params=dict(params),
        metrics=[],
    )
    writer.session.add(row)
    writer.session.flush()
    return row


def newest_models(reader: Reader, projects: Sequence[str]) -> Iterator[LoggedModelRow]:
    """The newest models of these projects that are not deleted. Some at a time are in memory."""
    query = (
        select(LoggedModelRow.job_key, LoggedModelRow.number)
        .join(JobRow, JobRow.key == LoggedModelRow.job_key)
        .where(JobRow.project.in_(projects), LoggedModelRow.deleted_at.is_(None))
        .order_by(LoggedModelRow.created_at.desc(), LoggedModelRow.job_key.desc(), LoggedModelRow.number.desc())
    )
    found = [(key, number) for key, number in reader.session.execute(query.limit(SEARCHED))]
    for at in range(0, len(found), _AT_ONCE):
        part = found[at : at + _AT_ONCE]
        of_part = select(LoggedModelRow).where(tuple_(LoggedModelRow.job_key, LoggedModelRow.number).in_(part))
        rows = {(row.job_key, row.number): row for row in reader.session.scalars(of_part)}
        yield from (rows[identity] for identity in part)
