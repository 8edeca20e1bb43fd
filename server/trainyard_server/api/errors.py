"""Translates errors to HTTP responses: the JSON envelope of `trainyard_protocol.errors`, or an HTML page.

An unreachable database or a full disk is 503 UNAVAILABLE with a Retry-After header: requests that did not succeed may
safely be repeated.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trainyard_protocol.errors import (
    MAX_VIOLATIONS,
    Internal,
    InvalidArgument,
    NotFound,
    TooManyRequests,
    TrainyardError,
    Unavailable,
    Violation,
    quoted,
    to_body,
)
from trainyard_server.api.middleware import security_headers
from trainyard_server.domain.access.route_access import MLFLOW_AREAS, AccessTable, wants_page
from trainyard_server.services.people.guess_limits import TooManyGuesses
from trainyard_server.storage.db.base.statements import ConcurrentUpdate
from trainyard_server.storage.failures import DatabaseError, FailureLog, UnstorableValue, failure_detail, failure_of

RETRY_AFTER_S = 5

logger = logging.getLogger(__name__)


_REALM = {"WWW-Authenticate": 'Bearer realm="trainyard"'}
INTERNAL = Internal("Internal error of the server. Its log has the details.")


class MethodNotAllowed(TrainyardError):
    http_status = 405
    status = "UNIMPLEMENTED"

    def __init__(self, method: str, path: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{method} {path} is not offered.")
        self.allowed = ", ".join(allowed)


def install(app: FastAPI) -> None:
    app.add_exception_handler(TrainyardError, _trainyard)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    transient = _TransientErrors()
    app.add_exception_handler(OSError, transient)
    app.add_exception_handler(DatabaseError, transient)
    app.add_exception_handler(ClientDisconnect, _disconnected)
    app.add_exception_handler(ConcurrentUpdate, _concurrent_update)
    app.add_exception_handler(Exception, _unexpected)


_MLFLOW_CODES = {
    "NOT_FOUND": "RESOURCE_DOES_NOT_EXIST",
    "INVALID_ARGUMENT": "INVALID_PARAMETER_VALUE",
    "UNAVAILABLE": "TEMPORARILY_UNAVAILABLE",
    "UNIMPLEMENTED": "NOT_IMPLEMENTED",
}
"""Codes of MLflow's errors where they are not ours. Source: mlflow/protos/databricks.proto"""


async def database_error(request: Request, error: DatabaseError) -> Response:
    """The response to a database error that is raised in a middleware, before routing."""
    response: Response = await request.app.exception_handlers[DatabaseError](request, error)
    return response


def error_json(error: TrainyardError, headers: dict[str, str] | None = None) -> JSONResponse:
    """The error as its JSON envelope."""
    return JSONResponse(to_body(error), error.http_status, _headers(error, headers))


def error_response(request: Request, error: TrainyardError, headers: dict[str, str] | None = None) -> Response:
    """The error as a page if the browser asks for one, else as its JSON envelope; as MLflow's clients read it for
    them."""
    if request.url.path.startswith(MLFLOW_AREAS):
        code = _MLFLOW_CODES.get(error.status, error.status)
        return JSONResponse({"error_code": code, "message": str(error)}, error.http_status, _headers(error, headers))
    if not wants_page(request.method, request.url.path, request.headers.get("accept", "")):
        return error_json(error, headers)
    page: Callable[[Request, TrainyardError], Response] = request.app.state.error_page
    response = page(request, error)
    response.headers.update(_headers(error, headers))
    return response


def _headers(error: TrainyardError, headers: dict[str, str] | None) -> dict[str, str]:
    """Adds the headers of the status. Google's client can read a 401 only with a realm. On a 429 it says that the token
    was wrong, so that waiting does not help."""
    if isinstance(error, TooManyRequests):
        wrong = _REALM if isinstance(error, TooManyGuesses) else {}
        return {**(headers or {}), **wrong, "Retry-After": str(error.retry_after_s)}
    if isinstance(error, MethodNotAllowed):
        return {**(headers or {}), "Allow": error.allowed}
    match error.http_status:
        case HTTPStatus.UNAUTHORIZED:
            return {**(headers or {}), **_REALM}
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return {**(headers or {}), "Retry-After": str(RETRY_AFTER_S)}
        case _:
            return headers or {}


async def _trainyard(request: Request, error: Exception) -> Response:
    assert isinstance(error, TrainyardError)
    return error_response(request, error)


async def _http(request: Request, error: Exception) -> Response:
    """Errors of the framework: an unknown path, or a method that the path does not have."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    call = f"{request.method} {request.url.path}"
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return error_response(request, NotFound(f"There is nothing at {call}."), headers)
        case HTTPStatus.METHOD_NOT_ALLOWED:
            access: AccessTable = request.app.state.access
            path = request.url.path
            refusal = MethodNotAllowed(request.method, path, access.methods_of(path))
            return error_response(request, refusal, headers)
        case _:
            return error_response(request, InvalidArgument(f"{call}: {error.detail}"), headers)


async def _validation(request: Request, error: Exception) -> Response:
    """A parameter or a body that is not valid."""
    assert isinstance(error, RequestValidationError)
    details = error.errors()[: MAX_VIOLATIONS + 1]
    if details[0]["type"] == "json_invalid":
        return error_response(request, InvalidArgument(f"Invalid JSON payload received. {details[0]['msg']}"))
    return error_response(request, InvalidArgument([_violation(detail) for detail in details]))


def _violation(detail: Mapping[str, Any]) -> Violation:
    where, *path = detail["loc"]
    if where == "body":
        return Violation(".".join(map(str, path)) or "body", detail["msg"])
    return Violation(str(path[-1]), f"{detail['msg']}; this is {quoted(detail.get('input'))}.")


class _TransientErrors:
    """Handles errors of the database and the disk. Logs one line for all requests that fail for the same reason."""

    def __init__(self) -> None:
        self._failures = FailureLog(logger)

    async def __call__(self, request: Request, error: Exception) -> Response:
        if isinstance(error, UnstorableValue):
            logger.warning("%s %r: %s", request.method, request.url.path, failure_detail(error))
            return error_response(
                request, InvalidArgument("The request has a text or a number that the database cannot store.")
            )
        self._failures.record("Requests cannot be answered", error)
        failure = failure_of(error)
        if failure is None and isinstance(error, OSError):
            return error_response(
                request, Unavailable("The server could not use a file. Its log has the reason; try again later.")
            )
        if failure is None:
            return error_response(request, INTERNAL)
        if failure.is_damage:  # not for who tries again what passes
            return error_response(request, Internal(f"The server cannot do that: {failure.reason}. {failure.remedy}"))
        return error_response(
            request, Unavailable(f"The server cannot do that now: {failure.reason}. {failure.remedy}")
        )


async def _concurrent_update(request: Request, _error: Exception) -> Response:
    return error_response(request, Unavailable("The job was changed by another request at the same time: try again."))


async def _disconnected(request: Request, _error: Exception) -> Response:
    """The client disconnected in the middle of its request and does not read this."""
    return error_response(request, InvalidArgument("The request ended before its body was complete."))


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """Runs outside of all middleware, so it adds the security headers itself."""
    response = error_json(INTERNAL)
    security_headers.complete(response.headers)
    return response
