"""Page of the HTTP API, open to all: its calls and messages as `/openapi.json` describes them."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from trainyard_server.api.description.openapi import description_of
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.views import Pages, View
from trainyard_server.domain.access.route_access import API_REFERENCE, Access

router = Router()

_LIMITS = (
    ("minimum", "from"),
    ("exclusiveMinimum", "above"),
    ("maximum", "to"),
    ("exclusiveMaximum", "below"),
    ("maxLength", "characters, at most"),
    ("maxItems", "at most"),
)


@router.get(API_REFERENCE, Access.NOBODY, "the description of this API as a page", response_class=HTMLResponse)
def api_reference(request: Request, pages: Pages) -> HTMLResponse:
    return HTMLResponse(pages.page(request, View("api_reference.html", lambda: _shown(request))))


def _shown(request: Request) -> Mapping[str, Any]:
    app: FastAPI = request.app
    document = description_of(app)
    groups: dict[str, list[dict[str, Any]]] = {tag["name"]: [] for tag in document["tags"]}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups[operation["tags"][0]].append(_call(document, method.upper(), path, operation))
    for calls in groups.values():
        calls.sort(key=lambda call: "200" not in call["answers"])  # what is refused comes last
    return {
        "about": document["info"]["description"],
        "groups": [(tag, groups[tag["name"]]) for tag in document["tags"]],
        "limits": _LIMITS,
        "messages": document["components"]["schemas"],
        "server": str(request.base_url).rstrip("/"),
        "version": document["info"]["version"],
    }


def _call(document: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "method": method,
        "path": path,
        "summary": operation["summary"],
        "description": operation.get("description", ""),
        "parameters": [_resolved(document, part) for part in operation.get("parameters", ())],
        "bodies": operation.get("requestBody", {}).get("content", {}),
        "answers": {code: _answer(document, part) for code, part in sorted(operation["responses"].items())},
        "is_open": not operation["security"],
    }


def _answer(document: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """An answer; errors, which all have one form, are references to a component."""
    answer = _resolved(document, described)
    return {"is_error": "$ref" in described, "description": answer["description"], "content": answer.get("content", {})}


def _resolved(document: Mapping[str, Any], value: Any) -> Any:
    """The value, or the component that it refers to."""
    reference = value.get("$ref", "")
    if not reference:
        return value
    kind, name = reference.split("/")[2:]
    return document["components"][kind][name]
