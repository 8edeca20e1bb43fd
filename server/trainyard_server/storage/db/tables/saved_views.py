"""Views of the table of jobs that projects have saved."""

from collections.abc import Sequence

from sqlalchemy import delete, func, select

from trainyard_server.domain.access.permissions import Visible
from trainyard_server.storage.db.base.models import SavedViewRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer


def views(reader: Reader, visible: Visible) -> Sequence[SavedViewRow]:
    """The views of visible projects."""
    query = select(SavedViewRow).order_by(SavedViewRow.project, SavedViewRow.name)
    return reader.session.scalars(query if visible is None else query.where(SavedViewRow.project.in_(visible))).all()


def count(reader: Reader, project: str) -> int:
    return reader.session.scalar(select(func.count()).select_from(SavedViewRow).filter_by(project=project)) or 0


def view(reader: Reader, project: str, name: str) -> SavedViewRow | None:
    return reader.session.get(SavedViewRow, (project, name))


def save(writer: Writer, row: SavedViewRow) -> None:
    """Add a view, or replace that of its name."""
    writer.session.merge(row)
    writer.session.flush()


def remove(writer: Writer, project: str, name: str) -> None:
    writer.session.execute(delete(SavedViewRow).filter_by(project=project, name=name))
