"""`POST /batch`: several calls of `/v1` or `/storage/v1` in one request, as Google's clients send them.

Body and answer are `multipart/mixed`, each part an HTTP message. Every call is made by itself, through all middleware,
in the order of the parts: with a token of its own, or that of the batch. Source:
https://developers.google.com/storage/docs/json_api/v1/how-tos/batch
"""

import asyncio
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from http import HTTPStatus
from urllib.parse import unquote

from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope
from starlette.types import Message as AsgiMessage

from trainyard_protocol.errors import InvalidArgument, NotFound, TooLarge, TrainyardError, Violation, shown
from trainyard_server.api.dependencies import RawBody
from trainyard_server.api.errors import error_json
from trainyard_server.api.middleware.csrf import replay
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import UNRECORDED, Access

MAX_CALLS = 100
"""Calls of one batch, as in Google's APIs."""

MAX_ANSWERS = 1 << 24
"""Bytes of all answers of one batch, which are held until the last one is there."""

_AREAS = ("/v1/", "/storage/v1/")
_ADDRESS = re.compile(r"https?://[^/?]*", re.ASCII)
_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (\S{1,65536})(?: HTTP/1\.[01])?", re.ASCII)
_NEWLINE = re.compile(rb"\A\r?\n")
_LONGEST_HEAD = 65_536

router = Router()


@dataclass(frozen=True, slots=True)
class InnerCall:
    """A call of a batch."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class BatchAnswer(Response):
    media_type = "multipart/mixed"


_BODY = {
    "requestBody": {"required": True, "content": {"multipart/mixed": {"schema": {"type": "string"}}}},
}


@router.post(
    "/batch",
    Access.PERSON,
    "several calls of `/v1`, each with its own check",
    UNRECORDED,
    response_class=BatchAnswer,
    openapi_extra=_BODY,
)
@router.post(
    "/batch/{api:path}",
    Access.PERSON,
    "the same, at its older path",
    UNRECORDED,
    response_class=BatchAnswer,
    openapi_extra=_BODY,
)
async def batch(request: Request, body: RawBody) -> Response:
    """Make the calls; 200 with an answer for each, whatever these are."""
    boundary = f"batch_{secrets.token_hex(16)}"
    answers = bytearray()
    for part in _parts(request.headers.get("content-type", ""), bytes(body)):
        content_id = ""
        try:
            content_id = _content_id(part)
            call = _call(part)
            # A task has a context of its own: the audit of one call is not that of another.
            answer = await asyncio.create_task(_answer(request, call, MAX_ANSWERS - len(answers)))
        except TrainyardError as error:
            refused = error_json(error)
            answer = _http_message(refused.status_code, refused.headers, bytes(refused.body))
        answers += f"--{boundary}\r\nContent-Type: application/http\r\n".encode()
        if content_id:
            answers += f"Content-ID: {_answer_id(content_id)}\r\n".encode()
        answers += b"\r\n" + answer + b"\r\n"
    answers += f"--{boundary}--\r\n".encode()
    return BatchAnswer(bytes(answers), media_type=f"multipart/mixed; boundary={boundary}")


def _parts(content_type: str, body: bytes) -> list[bytes]:
    """The parts of the body, each with its headers. Raises InvalidArgument.

    Not by Python's parser of mail: it takes seconds for some bodies, and every other request would wait.
    """
    boundary = _headers(b"Content-Type: " + content_type.encode("ascii", "replace")).get_boundary()
    if not content_type.startswith("multipart/mixed") or not boundary:
        raise InvalidArgument("A batch is a body of the type multipart/mixed with a boundary.")
    parts = []
    for piece in (b"\n" + body).split(b"\n--" + boundary.encode(), MAX_CALLS + 2)[1:]:
        if piece.startswith(b"--"):
            break
        parts.append(piece.partition(b"\n")[2].removesuffix(b"\r"))
    if not parts:
        raise InvalidArgument("The body has no parts: it does not match the boundary of its Content-Type.")
    if len(parts) > MAX_CALLS:
        raise InvalidArgument(f"A batch may have {MAX_CALLS} calls; this has more.")
    return parts


def _headers(head: bytes) -> Message:
    """The headers of a message. Raises InvalidArgument."""
    if len(head) > _LONGEST_HEAD:
        raise InvalidArgument(Violation("batch", f"the headers of a call may have {_LONGEST_HEAD} bytes."))
    return BytesParser().parsebytes(head, headersonly=True)


def _content_id(part: bytes) -> str:
    return str(_headers(_split(part)[0]).get("Content-ID", ""))


def _call(part: bytes) -> InnerCall:
    """The call of a part. Raises InvalidArgument, NotFound."""
    head, payload = _split(part)
    described = _headers(head)
    if described.get_content_type() != "application/http":
        raise InvalidArgument(Violation("batch", "each part must be of the type application/http."))
    encoding = str(described.get("Content-Transfer-Encoding", "binary")).strip().lower()
    if encoding not in ("binary", "7bit", "8bit"):
        raise InvalidArgument(Violation("batch", f"a part must be binary, not {shown(encoding)!r}."))
    line, _, rest = payload.lstrip(b"\r\n").partition(b"\n")
    match = _REQUEST_LINE.fullmatch(line.decode("latin-1").strip())
    if match is None:
        found = shown(line.decode("latin-1").strip())
        raise InvalidArgument(Violation("batch", f"a part must begin with a request line, not {found!r}."))
    target = _ADDRESS.sub("", match[2], count=1)  # of this server, as the batch itself
    if not target.startswith(_AREAS):
        raise NotFound(f"A batch has calls of {' and '.join(_AREAS)}; this is {shown(match[2])!r}.")
    if "alt=media" in unquote(target):
        raise InvalidArgument(Violation("alt", "a batch has no downloads: ask for the object by itself."))
    head, body = _split(rest)
    headers = {name.lower(): " ".join(str(value).split()) for name, value in _headers(head).items()}
    return InnerCall(match[1], target, headers, body)


def _split(message: bytes) -> tuple[bytes, bytes]:
    """Headers and body."""
    if start := _NEWLINE.match(message):
        return b"", message[start.end() :]
    found = re.search(rb"\r?\n\r?\n", message)
    return (message, b"") if found is None else (message[: found.start()], message[found.end() :])


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


async def _answer(outer: Request, call: InnerCall, room: int) -> bytes:
    """The answer to one call, as an HTTP message. Raises TooLarge for one of more than `room` bytes."""
    app: ASGIApp = outer.app
    overflow = asyncio.Event()
    status, headers, body = HTTPStatus.INTERNAL_SERVER_ERROR.value, Headers(), bytearray()

    async def disconnected() -> AsgiMessage:
        await overflow.wait()
        return {"type": "http.disconnect"}

    async def send(message: AsgiMessage) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], Headers(raw=message["headers"])
        elif message["type"] == "http.response.body" and not overflow.is_set():
            body.extend(message.get("body", b""))
            if len(body) > room:
                overflow.set()

    await app(_scope(outer, call), replay(call.body, disconnected), send)
    if overflow.is_set():
        raise TooLarge(f"The answers of a batch may have {MAX_ANSWERS} bytes: make this call by itself.")
    return _http_message(status, headers, bytes(body))


def _http_message(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    kept = ("content-type", "etag", "retry-after", "www-authenticate")
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Length: {len(body)}"]
    lines += [f"{name.title()}: {headers[name]}" for name in kept if name in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def _answer_id(content_id: str) -> str:
    """`<id + 1>` -> `<response-id + 1>`."""
    inside = content_id.strip().removeprefix("<").removesuffix(">")
    plain = "".join(c for c in inside if c.isascii() and c.isprintable() and c not in "<>")
    return f"<response-{plain[:500]}>"
