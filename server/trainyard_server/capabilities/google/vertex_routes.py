"""Routes of all else below a location of Vertex AI's API: each call is refused with what to use here. They come after
those of what is offered."""

from typing import Any

from trainyard_server.api.routing import Router
from trainyard_server.capabilities.google.vertex_collections import refusal, refusal_of_verb
from trainyard_server.domain.access.route_access import OTHER_OF_VERTEX, UNRECORDED, Access

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_REST = "Vertex AI: anything else is refused, with what to use here"

router = Router()


def _refuse(collection: str) -> dict[str, Any]:
    raise refusal(collection)


def _refuse_verb(verb: str) -> dict[str, Any]:
    raise refusal_of_verb(verb)


_of_location, *_others = OTHER_OF_VERTEX
router.post(_of_location, Access.VIEWER, _REST, UNRECORDED)(_refuse_verb)
for _path in _others:
    for _method in _METHODS:
        router.add(_method, _path, Access.VIEWER, _REST, UNRECORDED)(_refuse)
