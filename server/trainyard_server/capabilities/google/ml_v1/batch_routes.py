"""`POST /batch`: several calls of `/v1` or `/storage/v1` in one request, each through all middleware.

A call has a token of its own, or that of the batch. `trainyard_storage.batch` reads the parts.
"""

import asyncio
from functools import partial
from http import HTTPStatus
from urllib.parse import unquote

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from trainyard_protocol.errors import TrainyardError
from trainyard_server.api.dependencies import RawBody
from trainyard_server.api.errors import error_json
from trainyard_server.api.middleware.csrf import replay
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import UNRECORDED, Access
from trainyard_storage.batch import InnerCall, answer_batch, message, too_large

_AREAS = ("/v1/", "/storage/v1/")
_MAX_BODY = 4 * 2**20

router = Router()


class BatchAnswer(Response):
    media_type = "multipart/mixed"


_BODY = {"requestBody": {"required": True, "content": {"multipart/mixed": {"schema": {"type": "string"}}}}}


@router.post(
    "/batch",
    Access.PERSON,
    "several calls of `/v1`, each with its own check",
    UNRECORDED,
    response_class=BatchAnswer,
    openapi_extra=_BODY,
    body_limit=_MAX_BODY,
)
async def batch(request: Request, body: RawBody) -> Response:
    """Make the calls; 200 with an answer for each, whatever these are."""
    content_type = request.headers.get("content-type", "")
    make = partial(_answer_alone, request)
    kind, answers = await answer_batch(content_type, body, _AREAS, make, _refusal)
    return BatchAnswer(answers, media_type=kind)


@router.post(
    "/batch/{api:path}",
    Access.PERSON,
    "the same, at its older path",
    UNRECORDED,
    response_class=BatchAnswer,
    openapi_extra=_BODY,
    body_limit=_MAX_BODY,
)
async def batch_of_an_api(api: str, request: Request, body: RawBody) -> Response:  # noqa: ARG001 - all have one
    return await batch(request, body)


def _refusal(error: TrainyardError) -> bytes:
    refused = error_json(error)
    return message(refused.status_code, refused.headers, bytes(refused.body))


def _scope(outer: Request, call: InnerCall) -> Scope:
    path, _, query = call.target.partition("?")
    headers = dict(call.headers)
    headers.setdefault("authorization", outer.headers.get("authorization", ""))
    for name in ("host", "user-agent", "x-request-id"):
        headers[name] = outer.headers.get(name, "")
    headers["content-length"] = str(len(call.body))
    for name in ("cookie", "transfer-encoding"):
        headers.pop(name, None)
    return {
        **{key: outer.scope[key] for key in ("type", "asgi", "http_version", "scheme", "client", "server")},
        "method": call.method,
        "path": unquote(path),
        "raw_path": path.encode("ascii", "replace"),
        "root_path": "",
        "query_string": query.encode("ascii", "replace"),
        "headers": [(_latin(name), _latin(value)) for name, value in headers.items() if value],
        "state": {},
    }


def _latin(text: str) -> bytes:
    return text.encode("latin-1", "replace")


async def _answer_alone(outer: Request, call: InnerCall) -> bytes:
    """Run `_answer` in a task with a context of its own: the audit of one call is not that of another."""
    return await asyncio.create_task(_answer(outer, call))


async def _answer(outer: Request, call: InnerCall) -> bytes:
    """The answer to one call, as an HTTP message. Raises TooLarge."""
    app: ASGIApp = outer.app
    overflow = asyncio.Event()
    status, headers, body = HTTPStatus.INTERNAL_SERVER_ERROR.value, Headers(), bytearray()

    async def disconnected() -> Message:
        await overflow.wait()
        return {"type": "http.disconnect"}

    async def send(event: Message) -> None:
        nonlocal status, headers
        if event["type"] == "http.response.start":
            status, headers = event["status"], Headers(raw=event["headers"])
        elif event["type"] == "http.response.body" and not overflow.is_set():
            body.extend(event.get("body", b""))
            if len(body) > call.room:
                overflow.set()

    await app(_scope(outer, call), replay(call.body, disconnected), send)
    if overflow.is_set():
        raise too_large()
    return message(status, headers, bytes(body))
