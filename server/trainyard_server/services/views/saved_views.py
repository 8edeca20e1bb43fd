"""Saved views: the addresses of the run table that a project has given a name."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

from trainyard_protocol.answers.experiments import SavedView
from trainyard_protocol.errors import InvalidArgument, NotFound, ResourceExhausted, Violation, quoted
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller, Visible
from trainyard_server.storage.db.base.models import SavedViewRow
from trainyard_server.storage.db.tables import saved_views

MAX_VIEWS = 100
"""Limit of a project."""

MAX_LISTED = 1000
"""Most views in a list with their queries."""

_MAX_NAME = 100
_MAX_QUERY = 4000
_NOT_KEPT = ("page", "view")


@dataclass(frozen=True, slots=True)
class ViewChoice:
    """A saved view by name, as a page offers it. `is_shown`: it is the page's own address."""

    project: str
    name: str
    saved_by: str
    is_shown: bool


class SavedViews:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def list(self, visible: Visible, project: str = "") -> Sequence[SavedView]:
        """The saved views of visible projects, or of one of them, at most MAX_LISTED."""
        with self._backend.store.read() as reader:
            return [_view(row) for row in saved_views.views(reader, visible, project, MAX_LISTED)]

    def choices(self, visible: Visible, project: str, items: Iterable[tuple[str, str]]) -> Sequence[ViewChoice]:
        """The names of at most MAX_VIEWS views: of the project, "" for all that are visible. `items` are those of the
        page's query."""
        with self._backend.store.read() as reader:
            rows = saved_views.names(reader, visible, project, _query(items), MAX_VIEWS)
            return [ViewChoice(*row) for row in rows]

    def get(self, project: str, name: str) -> SavedView:
        """Raises NotFound."""
        with self._backend.store.read() as reader:
            row = saved_views.view(reader, project, name)
            if row is None:
                raise _missing(project, name)
            return _view(row)

    def save(self, caller: Caller, project: str, name: str, query: str) -> SavedView:
        """Save the query of an address under a name, in place of the view of that name. Raises InvalidArgument, and
        ResourceExhausted beyond MAX_VIEWS."""
        name = name.strip()
        wrong = []
        if not (0 < len(name) <= _MAX_NAME and name.isprintable()):
            wrong.append(Violation("name", f"has 1 to {_MAX_NAME} printable characters; this is {quoted(name)}."))
        kept = _query(parse_qsl(query[:_MAX_QUERY].lstrip("?")))
        length = max(len(query), len(kept))
        if length > _MAX_QUERY:
            wrong.append(Violation("query", f"has at most {_MAX_QUERY} characters in an address; this has {length}."))
        if wrong:
            raise InvalidArgument(wrong)
        row = SavedViewRow(project=project, name=name, query=kept, saved_by=caller.name, saved_at=self._backend.clock())
        with self._backend.store.write(caller.name) as writer:
            is_new = saved_views.view(writer, project, name) is None
            if is_new and saved_views.count(writer, project) >= MAX_VIEWS:
                raise ResourceExhausted(f"The project {project} has {MAX_VIEWS} saved views, the limit: delete some.")
            saved_views.save(writer, row)
        return _view(row)

    def delete(self, caller: Caller, project: str, name: str) -> None:
        """Raises NotFound."""
        with self._backend.store.write(caller.name) as writer:
            if saved_views.view(writer, project, name) is None:
                raise _missing(project, name)
            saved_views.remove(writer, project, name)


def _query(items: Iterable[tuple[str, str]]) -> str:
    """The query of an address as it is saved."""
    return urlencode([(key, value) for key, value in items if value and key not in _NOT_KEPT])


def _missing(project: str, name: str) -> NotFound:
    return NotFound(f"The project {project} has no saved view {quoted(name)}.")


def _view(row: SavedViewRow) -> SavedView:
    return SavedView(project=row.project, name=row.name, query=row.query, saved_by=row.saved_by, saved_at=row.saved_at)
