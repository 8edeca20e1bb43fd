"""The one place that turns errors into HTTP answers: always the envelope of `trainyard_protocol.errors`.

A database that is away and a disk that is full are 503 UNAVAILABLE, with a Retry-After: what was not answered with
success may safely be asked again.
"""

import logging
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
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
from trainyard_server import headers
from trainyard_server.store import Overtaken
from trainyard_server.trouble import Troubles, reason

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


def answer(error: TrainyardError, headers: dict[str, str] | None = None) -> JSONResponse:
    """The envelope. A 401 says which kind of credential is wanted; Google's client needs the realm to read it."""
    if error.http_status == HTTPStatus.UNAUTHORIZED:
        headers = {**(headers or {}), "WWW-Authenticate": 'Bearer realm="trainyard"'}
    elif error.http_status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers = {**(headers or {}), "Retry-After": str(RETRY_AFTER_S)}
    return JSONResponse(to_body(error), error.http_status, headers)


async def _trainyard(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TrainyardError)
    return answer(error)


async def _http(request: Request, error: Exception) -> JSONResponse:
    """What the framework itself refuses: an unknown path, a method that a path does not have."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers) if error.headers else None
    where = f"{request.method} {request.url.path}"
    match error.status_code:
        case HTTPStatus.NOT_FOUND:
            return answer(NotFound(f"There is nothing at {where}."), headers)
        case HTTPStatus.METHOD_NOT_ALLOWED:
            return answer(MethodNotAllowed(f"{where} is not offered."), headers)
        case _:
            return answer(InvalidArgument(f"{where}: {error.detail}"), headers)


async def _validation(_request: Request, error: Exception) -> JSONResponse:
    """A query or path parameter of the wrong type."""
    assert isinstance(error, RequestValidationError)
    return answer(
        InvalidArgument(
            [
                Violation(str(one["loc"][-1]), f"{one['msg']}; this is {one.get('input')!r}.")
                for one in error.errors()
            ]
        )
    )


class _Passing:
    """The database or the disk cannot be used. The log has one line for all requests that meet the same."""

    def __init__(self) -> None:
        self._troubles = Troubles(logger)

    async def __call__(self, _request: Request, error: Exception) -> JSONResponse:
        self._troubles.note("Requests cannot be answered", error)
        why = reason(error)
        if why is None and isinstance(error, OSError):
            return answer(Unavailable("The server could not use a file. Its log says why; try again later."))
        if why is None:
            return answer(_OF_OURS)
        return answer(
            Unavailable(f"The server cannot do that now: {why}. It goes on by itself once that is mended.")
        )


async def _overtaken(_request: Request, _error: Exception) -> JSONResponse:
    return answer(Unavailable("Somebody else changed the job at the same moment: try again."))


async def _gone(_request: Request, _error: Exception) -> JSONResponse:
    """The caller broke off in the middle of its request; nobody reads this."""
    return answer(InvalidArgument("The request broke off before its end."))


async def _unexpected(_request: Request, _error: Exception) -> JSONResponse:
    """This alone is answered outside of all middleware."""
    response = answer(_OF_OURS)
    headers.complete(response.headers)
    return response
