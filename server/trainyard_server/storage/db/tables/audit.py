"""The audit in the database: entries are added, listed and, when they are old enough, removed."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import delete, select, update

from trainyard_protocol.answers.audit import AuditEntry
from trainyard_server.storage.db.base.people_models import AuditRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer
from trainyard_server.storage.db.tables.audit_trail import entry_of, row_of

_CHANGING = {"actor", "credential", "subject", "outcome", "status"}


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """A filter of entries; None and "" filter nothing. `below`: only those with a lower id."""

    projects: Collection[str] | None = None
    actor: str = ""
    action: str = ""
    since: datetime | None = None
    until: datetime | None = None
    below: int | None = None


def add(writer: Writer, entry: AuditEntry) -> AuditEntry:
    """Add an entry. Returns it with its id."""
    row = row_of(entry)
    writer.session.add(row)
    writer.session.flush()
    return entry_of(row)


def complete(writer: Writer, entry: AuditEntry) -> None:
    """Write what the end of the request has shown about an entry that is stored."""
    values = entry.model_dump(include=_CHANGING)
    writer.session.execute(update(AuditRow).filter_by(id=entry.id).values(**values))


def entries(reader: Reader, query: AuditQuery, limit: int) -> Sequence[AuditEntry]:
    """The newest entries that match."""
    rows = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit)
    if query.projects is not None:
        rows = rows.where(AuditRow.project.in_(query.projects))
    if query.actor:
        rows = rows.filter_by(actor=query.actor)
    if query.action:
        rows = rows.filter_by(action=query.action)
    if query.since is not None:
        rows = rows.where(AuditRow.time >= query.since)
    if query.until is not None:
        rows = rows.where(AuditRow.time < query.until)
    if query.below is not None:
        rows = rows.where(AuditRow.id < query.below)
    return list(map(entry_of, reader.session.scalars(rows)))


def remove_before(writer: Writer, time: datetime, limit: int) -> int:
    """Remove the oldest entries from before that time, at most `limit`. Returns their number."""
    ids = writer.session.scalars(
        select(AuditRow.id).where(AuditRow.time < time).order_by(AuditRow.time).limit(limit)
    ).all()
    if ids:
        writer.session.execute(delete(AuditRow).where(AuditRow.id.in_(ids)))
    return len(ids)
