"""The one place that turns errors into HTTP answers: the envelope of `trainyard_protocol.errors`, or a page for people.

A database that is away and a disk that is full are 503 UNAVAILABLE, with a Retry-After: what was not answered with
success may safely be asked again.
"""

import logging
from collections.abc import Callable
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError, SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from trainyard_protocol.errors import (
    Internal,
    InvalidArgument,
    NotFound,
    TrainyardError,
    Unavailable,
    Violation,
    to_body,
)
from trainyard_server.api import security_headers as headers
from trainyard_server.domain.permissions import wants_page
from trainyard_server.storage.db.repository import Overtaken
from trainyard_server.storage.failures import Troubles, detail, reason

RETRY_AFTER_S = 5

logger = logging.getLogger(__name__)


_OF_OURS = Internal("The server met an error of its own. Its log says more.")


class MethodNotAllowed(TrainyardError):
    http_status = 405
    status = "UNIMPLEMENTED"


def install(app: FastAPI) -> None:
    app.add_exception_handler(TrainyardError, _trainyard)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)
    passing = _Passing()
    app.add_exception_handler(OSError, passing)
    app.add_exception_handler(SQLAlchemyError, passing)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Overtaken, _overtaken)
    app.add_exception_handler(Exception, _unexpected)


async def unusable(request: Request, error: SQLAlchemyError) -> Response:
    """What is answered where the database could not be used before there was a route."""
    response: Response = await request.app.exception_handlers[SQLAlchemyError](request, error)
    return response


def answer(error: TrainyardError, headers: dict[str, str] | None = None) -> JSONResponse:
    """The envelope."""
    return JSONResponse(to_body(error), error.http_status, _headers(error, headers))


def answer_to(request: Request, error: TrainyardError, headers: dict[str, str] | None = None) -> Response:
    """A page for a person who waits for one, else the envelope."""
    if not wants_page(request.method, request.url.path, request.headers.get("accept", "")):
        return answer(error, headers)
    page: Callable[[Request, TrainyardError], Response] = request.app.state.error_page
    said = page(request, error)
    said.headers.update(_headers(error, headers))
    return said


def _headers(error: TrainyardError, headers: dict[str, str] | None) -> dict[str, str]:
    """A 401 says which kind of credential is wanted; Google's client needs the realm to read it."""
    match error.http_status:
        case HTTPStatus.UNAUTHORIZED:
            return {**(headers or {}), "WWW-Authenticate": 'Bearer realm="trainyard"'}
        case HTTPStatus.SERVICE_UNAVAILABLE:
            return {**(headers or {}), "Retry-After": str(RETRY_AFTER_S)}
        case _:
            return headers or {}


async def _trainyard(request: Request, error: Exception) -> Response:
    assert isinstance(error, TrainyardError)
    return answer_to(request, error)


async def _http(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: an unknown path, a method that a path does not have."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    where = f"{request.method} {request.url.path}"
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return answer_to(request, NotFound(f"There is nothing at {where}."), headers)
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return answer_to(request, MethodNotAllowed(f"{where} is not offered."), headers)
        case _:
            return answer_to(request, InvalidArgument(f"{where}: {error.detail}"), headers)


async def _validation(request: Request, error: Exception) -> Response:
    """A query or path parameter of the wrong type."""
    assert isinstance(error, RequestValidationError)
    return answer_to(
        request,
        InvalidArgument(
            [
                Violation(str(one["loc"][-1]), f"{one['msg']}; this is {one.get('input')!r}.")
                for one in error.errors()
            ]
        ),
    )


class _Passing:
    """The database or the disk cannot be used. The log has one line for all requests that meet the same."""

    def __init__(self) -> None:
        self._troubles = Troubles(logger)

    async def __call__(self, request: Request, error: Exception) -> Response:
        if isinstance(error, DataError):  # such as a NUL in a name, to PostgreSQL
            logger.warning("%s %r: %s", request.method, request.url.path, detail(error))
            return answer_to(
                request, InvalidArgument("The call has a text or a number that no database can hold.")
            )
        self._troubles.note("Requests cannot be answered", error)
        why = reason(error)
        if why is None and isinstance(error, OSError):
            return answer_to(
                request, Unavailable("The server could not use a file. Its log says why; try again later.")
            )
        if why is None:
            return answer_to(request, _OF_OURS)
        return answer_to(
            request,
            Unavailable(f"The server cannot do that now: {why}. It goes on by itself once that is mended."),
        )


async def _overtaken(request: Request, _error: Exception) -> Response:
    return answer_to(request, Unavailable("Somebody else changed the job at the same moment: try again."))


async def _gone(request: Request, _error: Exception) -> Response:
    """The caller broke off in the middle of its request; nobody reads this."""
    return answer_to(request, InvalidArgument("The request broke off before its end."))


async def _unexpected(_request: Request, _error: Exception) -> Response:
    """This alone is answered outside of all middleware."""
    response = answer(_OF_OURS)
    headers.complete(response.headers)
    return response
