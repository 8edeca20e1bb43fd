"""Attachments to replicas. Their servers keep their rows alive; those of a server that was killed expire."""

from collections.abc import Collection
from datetime import datetime

from sqlalchemy import and_, bindparam, delete, func, select, update

from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.attachments import AttachOrder
from trainyard_server.capabilities.attachments.tables import AttachmentRow
from trainyard_server.storage.db.base.models import ReplicaRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer


def open_of(reader: Reader, caller: str, now: datetime) -> int:
    """The number of open attachments of a caller."""
    alive = (AttachmentRow.caller == caller, AttachmentRow.alive_until > now)
    return reader.session.scalar(select(func.count()).select_from(AttachmentRow).where(*alive)) or 0


def attachment(reader: Reader, attachment_id: str) -> AttachmentRow | None:
    return reader.session.get(AttachmentRow, attachment_id)


_RUNNING = and_(
    ReplicaRow.run_id == AttachmentRow.run_id,
    ReplicaRow.task == AttachmentRow.task,
    ReplicaRow.state == ReplicaState.RUNNING,
)
_ORDERS = (  # built once: it is asked with each answer to a busy agent
    select(AttachmentRow)
    .join(ReplicaRow, _RUNNING)
    .where(AttachmentRow.agent_id == bindparam("agent_id"), AttachmentRow.alive_until > bindparam("now"))
    .where(AttachmentRow.joined)
    .order_by(AttachmentRow.attachment_id)
)


def orders_for(reader: Reader, agent_id: str, now: datetime) -> tuple[AttachOrder, ...]:
    """The open attachments of an agent's replicas that run, whose callers have come."""
    rows = reader.session.scalars(_ORDERS, {"agent_id": agent_id, "now": now})
    return tuple(AttachOrder(**row.request | {"id": row.attachment_id, "run_id": row.run_id}) for row in rows)


def add(writer: Writer, row: AttachmentRow, now: datetime) -> None:
    """Add an attachment, and delete those that have expired."""
    writer.session.execute(delete(AttachmentRow).where(AttachmentRow.alive_until < now))
    writer.session.add(row)


def mark_joined(writer: Writer, attachment_id: str) -> None:
    chosen = AttachmentRow.attachment_id == attachment_id
    writer.session.execute(update(AttachmentRow).where(chosen).values(joined=True))


def keep_alive(writer: Writer, attachment_ids: Collection[str], until: datetime) -> None:
    chosen = AttachmentRow.attachment_id.in_(attachment_ids)
    writer.session.execute(update(AttachmentRow).where(chosen).values(alive_until=until))


def remove(writer: Writer, attachment_id: str) -> None:
    writer.session.execute(delete(AttachmentRow).where(AttachmentRow.attachment_id == attachment_id))
