"""Routes with who may call them, declared in one place.

    @router.get("/jobs/{job_id}", Access.VIEWER, "get a job")
    def get(project: str, job_id: str, cases: Cases) -> JobDetail: ...

`AccessTable` has what they declare: the authentication, the limits, the audit and the descriptions of the API look
there.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from fastapi.params import Depends
from fastapi.responses import Response
from fastapi.routing import APIRoute, APIWebSocketRoute
from starlette.routing import BaseRoute

from trainyard_server.api.description.operations import BEARER, errors_of, tag_of
from trainyard_server.api.json_route import JsonRoute
from trainyard_server.domain.access.route_access import SOCKET, UNRECORDED, Access, Route, is_described

_Function = TypeVar("_Function", bound=Callable[..., Any])


class RouteDecorator(Protocol):
    def __call__(self, function: _Function, /) -> _Function: ...


class _RouteOptions(TypedDict, total=False):
    """Options of FastAPI's routes."""

    response_model: Any
    response_model_exclude_none: bool
    response_class: type[Response]
    responses: dict[int | str, dict[str, Any]]
    openapi_extra: dict[str, Any]


class _Options(_RouteOptions, total=False):
    """The same, and those of a row of the access table."""

    own: bool
    is_stream: bool
    body_limit: int
    is_upload: bool


class Router:
    """Routes of one module. `rows` has their declarations."""

    def __init__(self, prefix: str = "", dependencies: Sequence[Depends] = (), body_limit: int | None = None) -> None:
        """`body_limit` is for routes that declare none."""
        self._prefix = prefix
        self._body_limit = body_limit
        self._dependencies = dependencies
        self.routes: list[BaseRoute] = []
        self.rows: list[Route] = []

    def get(
        self, path: str, access: Access, what: str, action: str | None = None, **options: Unpack[_Options]
    ) -> RouteDecorator:
        """A route that changes nothing, unless it has an action."""
        return self.add("GET", path, access, what, action, **options)

    def post(self, path: str, access: Access, what: str, action: str, **options: Unpack[_Options]) -> RouteDecorator:
        return self.add("POST", path, access, what, action, **options)

    def put(self, path: str, access: Access, what: str, action: str, **options: Unpack[_Options]) -> RouteDecorator:
        return self.add("PUT", path, access, what, action, **options)

    def patch(self, path: str, access: Access, what: str, action: str, **options: Unpack[_Options]) -> RouteDecorator:
        return self.add("PATCH", path, access, what, action, **options)

    def delete(self, path: str, access: Access, what: str, action: str, **options: Unpack[_Options]) -> RouteDecorator:
        return self.add("DELETE", path, access, what, action, **options)

    def add(
        self,
        method: str,
        path: str,
        access: Access,
        what: str,
        action: str | None,
        *,
        own: bool = False,
        is_stream: bool = False,
        body_limit: int | None = None,
        is_upload: bool = False,
        **options: Unpack[_RouteOptions],
    ) -> RouteDecorator:
        """`what` it is for, in words; `action` is its name in the audit, or UNRECORDED. `body_limit` is in bytes: a
        route that takes more than the server's limit. An upload limits its body itself."""
        limit = body_limit or self._body_limit
        row = Route(method, self._prefix + path, access, what, action, is_stream, own, limit, is_upload)

        def adding(function: _Function) -> _Function:
            self.routes.append(self._api_route(row, function, options))
            self.rows.append(row)
            return function

        return adding

    def _api_route(self, row: Route, function: Callable[..., Any], options: _RouteOptions) -> JsonRoute:
        if not is_described(row.path):
            return JsonRoute(row, function, dependencies=self._dependencies, include_in_schema=False, **options)
        options["responses"] = errors_of(row.path, "response_class" not in options) | options.get("responses", {})
        schemes = [] if row.access is Access.NOBODY else [BEARER]
        return JsonRoute(
            row,
            function,
            dependencies=[*self._dependencies, *schemes],
            summary=row.what[:1].upper() + row.what[1:],
            tags=[tag_of(row.path)],
            **options,
        )

    def socket(self, path: str, access: Access, what: str) -> RouteDecorator:
        """A WebSocket. What it is for was created, and audited, by another route."""
        row = Route(SOCKET, self._prefix + path, access, what, UNRECORDED)

        def adding(function: _Function) -> _Function:
            self.routes.append(APIWebSocketRoute(row.path, function))
            self.rows.append(row)
            return function

        return adding

    def add_live(self, path: str, function: Callable[..., Any]) -> None:
        """Add the changes of the page at `path`, for its callers."""
        self.routes.append(APIRoute(f"/live{path}", function, include_in_schema=False))
