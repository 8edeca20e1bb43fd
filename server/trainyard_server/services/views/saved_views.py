"""Saved views: the addresses of the run table that a project has given a name."""

from collections.abc import Sequence
from urllib.parse import parse_qsl, urlencode

from trainyard_protocol.errors import InvalidArgument, NotFound, ResourceExhausted, Violation, quoted
from trainyard_protocol.views.experiments import SavedView
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller, Visible
from trainyard_server.storage.db.base.models import SavedViewRow
from trainyard_server.storage.db.tables import saved_views

MAX_VIEWS = 100
"""Limit of a project."""

_MAX_NAME = 100
_MAX_QUERY = 4000
_NOT_KEPT = ("page", "view")


class SavedViews:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def list(self, visible: Visible) -> Sequence[SavedView]:
        with self._backend.store.read() as reader:
            return [_view(row) for row in saved_views.views(reader, visible)]

    def save(self, caller: Caller, project: str, name: str, query: str) -> SavedView:
        """Save the query of an address under a name, in place of the view of that name. Raises InvalidArgument, and
        ResourceExhausted beyond MAX_VIEWS."""
        name = name.strip()
        wrong = []
        if not (0 < len(name) <= _MAX_NAME and name.isprintable()):
            wrong.append(Violation("name", f"has 1 to {_MAX_NAME} printable characters; this is {quoted(name)}."))
        if len(query) > _MAX_QUERY:
            wrong.append(Violation("query", f"has at most {_MAX_QUERY} characters; this has {len(query)}."))
        if wrong:
            raise InvalidArgument(wrong)
        items = [(key, value) for key, value in parse_qsl(query.lstrip("?")) if key not in _NOT_KEPT]
        row = SavedViewRow(
            project=project, name=name, query=urlencode(items), saved_by=caller.name, saved_at=self._backend.clock()
        )
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
                raise NotFound(f"The project {project} has no saved view {quoted(name)}.")
            saved_views.remove(writer, project, name)


def _view(row: SavedViewRow) -> SavedView:
    return SavedView(project=row.project, name=row.name, query=row.query, saved_by=row.saved_by, saved_at=row.saved_at)
