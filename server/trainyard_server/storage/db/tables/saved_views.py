"""Views of the table of jobs that projects have saved."""

from collections.abc import Iterator, Sequence

from sqlalchemy import ColumnElement, delete, func, select

from trainyard_server.domain.access.permissions import Visible
from trainyard_server.storage.db.base.models import SavedViewRow
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.repository import Writer

_ORDER = (SavedViewRow.project, SavedViewRow.name)


def views(reader: Reader, visible: Visible, project: str, limit: int) -> Sequence[SavedViewRow]:
    """The views of visible projects, or of one of them."""
    query = select(SavedViewRow).where(*_chosen(visible, project)).order_by(*_ORDER)
    return reader.session.scalars(query.limit(limit)).all()


def names(
    reader: Reader, visible: Visible, project: str, query: str, limit: int
) -> Sequence[tuple[str, str, str, bool]]:
    """The same without their queries: project, name, who saved it, and whether its query is this one."""
    columns = select(*_ORDER, SavedViewRow.saved_by, SavedViewRow.query == query)
    rows = reader.session.execute(columns.where(*_chosen(visible, project)).order_by(*_ORDER).limit(limit))
    return [(row[0], row[1], row[2], bool(row[3])) for row in rows]


def _chosen(visible: Visible, project: str) -> Iterator[ColumnElement[bool]]:
    if visible is not None:
        yield SavedViewRow.project.in_(visible)
    if project:
        yield SavedViewRow.project == project


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
