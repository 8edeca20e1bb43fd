"""The API of the storage emulator: requests, answered by the handlers of the package gcp-storage-emulator.

The package's own HTTP server is not used. It deletes everything at `GET /wipe`, has one thread, which half a request
blocks, and sends what was stored as any type. Its storage is not made for threads: one call at a time.
"""

import errno
import json
import logging
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO
from urllib.parse import quote

from gcp_storage_emulator import server as library
from gcp_storage_emulator.exceptions import BadRequest, Conflict, NotFound
from gcp_storage_emulator.handlers import buckets, objects
from gcp_storage_emulator.storage import Storage

_HANDLERS = "gcp_storage_emulator.handlers."
_BUCKET = re.compile(r"[A-Za-z0-9][-.\w]*", re.ASCII)  # others are directories of the package's own
_HEADERS = re.compile(
    r"content-range|range|location|x-goog-hash|x-goog-meta-[\w.-]+", re.ASCII | re.IGNORECASE
)
_HEADER_VALUE = re.compile(r"[ -~]*")
_PASSIVE = re.compile(
    r"(application/(json|octet-stream|x-ndjson)|text/(plain|csv)|image/(png|jpeg|gif|webp)|multipart/mixed)(;.*)?"
)
_INERT = "application/octet-stream"
_DEFENSES = (
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Disposition", "attachment"),
    ("Content-Security-Policy", "sandbox; default-src 'none'"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
_MAX_JSON, _MAX_MULTIPART, _MAX_BODY = 1 << 20, 1 << 26, 1 << 30
_MAX_PATH = 4096  # the package's patterns need more than linear time, most of all for a path that ends with /
_NAME_ERRORS = (NotADirectoryError, IsADirectoryError, FileExistsError)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `target` is path and query as the package knows them; `base` is the URL in front of it, with which
    the caller can come back."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: BinaryIO
    size: int
    base: str


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Refused(Exception):
    """A request that is not served: `status` and the message say why."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def refusal(status: HTTPStatus, message: str) -> Answer:
    """An answer in the form that Google's clients show."""
    errors = [{"domain": "global", "reason": status.phrase, "message": message}]
    error = {"error": {"code": status.value, "message": message, "errors": errors}}
    return _answer(status, {"Content-Type": "application/json"}, json.dumps(error).encode())


def body_limit(headers: Mapping[str, str], target: str) -> int:
    """The largest body in bytes. What is parsed as a whole is smaller than an object. Pure."""
    kind = headers.get("content-type", "").lower()
    if kind.startswith("multipart/"):
        return _MAX_MULTIPART
    return _MAX_JSON if kind.startswith("application/json") and "upload_id=" not in target else _MAX_BODY


class StorageApi:
    """Buckets and objects below `data_dir`. Not for several threads."""

    def __init__(self, data_dir: Path) -> None:
        self._storage = Storage(data_dir=str(data_dir))

    def answer(self, call: Call) -> Answer:
        try:
            return self._answer(call)
        except Refused as refused:
            return refusal(refused.status, refused.message)
        except NotFound as error:
            return refusal(HTTPStatus.NOT_FOUND, str(error) or "There is no such object.")
        except Conflict as error:
            return refusal(HTTPStatus.CONFLICT, str(error))
        except BadRequest as error:
            return refusal(HTTPStatus.BAD_REQUEST, str(error))
        except _NAME_ERRORS:
            message = "On this disk an object X cannot be beside objects X/...: choose another name."
            return refusal(HTTPStatus.BAD_REQUEST, message)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return refusal(
                    HTTPStatus.BAD_REQUEST, "A part of an object's name is at most 255 bytes long."
                )
            _log.warning("a %s failed: %s", call.method, error.strerror)
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR, f"The storage failed: {error.strerror}.")
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            # The package checks little of what it is sent, and refuses a name with `..` like this.
            return refusal(
                HTTPStatus.BAD_REQUEST, f"The request cannot be understood ({type(error).__name__})."
            )

    def _answer(self, call: Call) -> Answer:
        request = _request(call)
        method = call.headers.get("x-http-method-override", call.method)
        handler = _handler(request, method)
        if handler is buckets.insert and not _BUCKET.fullmatch(request.data["name"]):
            raise Refused(HTTPStatus.BAD_REQUEST, "A bucket's name begins with a letter or a digit.")
        response = _Response(call.base)
        handler(request, response, self._storage)
        return _answer(response.status, response.headers, response.content)


@dataclass(slots=True)
class _Response:
    """Response object of the package's handlers."""

    base: str
    status: Any = HTTPStatus.OK
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""

    def __setitem__(self, name: str, value: str) -> None:
        # A place to come back to, which the package has made without the path of `base`.
        self.headers[name] = _rebased(value, self.base) if name == "Location" else value

    def write(self, text: str) -> None:
        self.content += text.encode()

    def write_file(self, content: bytes, content_type: str | None = None) -> None:
        self.headers["Content-Type"] = content_type or _INERT
        self.content = content

    def json(self, value: Any) -> None:
        self.headers["Content-Type"] = "application/json"
        self.content = json.dumps(_with_links(value, self.base)).encode()


def _routes() -> tuple[tuple[re.Pattern[str], Mapping[str, Callable[..., None]]], ...]:
    """The package's routes without those of its server itself, such as /wipe."""
    return tuple(
        (re.compile(pattern), methods)
        for pattern, methods in library.HANDLERS
        if all(handler.__module__.startswith(_HANDLERS) for handler in methods.values())
    )


_ROUTES = _routes()


def _handler(request: Any, method: str) -> Callable[..., None]:
    if len(request.path) > _MAX_PATH:
        raise Refused(HTTPStatus.REQUEST_URI_TOO_LONG, "An object's name is at most 1024 bytes long.")
    for pattern, methods in () if request.path.endswith("/") else _ROUTES:
        if match := pattern.fullmatch(request.path):
            request.set_match(match)
            if method in methods:
                return methods[method]
            # Some clients upload to the address of the bucket's objects.
            if method == "POST" and "uploadType" in request.query and request.path.endswith("/o"):
                insert: Callable[..., None] = objects.insert
                return insert
            break
    raise Refused(HTTPStatus.NOT_FOUND, f"The storage emulator has no {method} for this path.")


def _request(call: Call) -> Any:
    headers = Message()
    body, size = _decoded(call)
    for name, value in call.headers.items():
        if name not in ("content-length", "content-encoding", "transfer-encoding"):
            headers[name] = value
    headers["Content-Length"] = str(size)
    handler = SimpleNamespace(
        path=call.target, headers=headers, rfile=body, server=SimpleNamespace(server_address=("", 0))
    )
    return library.Request(handler, call.method)


def _decoded(call: Call) -> tuple[BinaryIO, int]:
    """The body without its Content-Encoding. Raises Refused if it grows too large."""
    if call.headers.get("content-encoding", "identity") not in ("gzip", "deflate"):
        return call.body, call.size
    decoder = zlib.decompressobj(wbits=47)  # both formats
    try:
        content = decoder.decompress(call.body.read(), _MAX_MULTIPART)
    except zlib.error as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"The body is not in its Content-Encoding: {error}.") from error
    if decoder.unconsumed_tail:
        raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body is too large when it is decompressed.")
    return BytesIO(content), len(content)


def _rebased(url: str, base: str) -> str:
    """`url` below `base` in place of its own scheme and host."""
    return f"{base}/{url.partition('://')[2].partition('/')[2]}"


def _with_links(value: Any, base: str) -> Any:
    """Object resources with download addresses below `base`; the stored ones are from another caller."""
    if not isinstance(value, dict):
        return value
    made = dict(value)
    if "mediaLink" in value:
        path = f"b/{value['bucket']}/o/{quote(value['name'], safe='')}"
        made["mediaLink"] = f"{base}/download/storage/v1/{path}?generation={value['generation']}&alt=media"
    if isinstance(value.get("items"), list):
        made["items"] = [_with_links(item, base) for item in value["items"]]
    if "resource" in value:
        made["resource"] = _with_links(value["resource"], base)
    return made


def _answer(status: Any, headers: Mapping[str, str], body: bytes) -> Answer:
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    safe = kind if _PASSIVE.fullmatch(kind) and _HEADER_VALUE.fullmatch(kind) else _INERT
    sent = [
        (name, value)
        for name, value in headers.items()
        if _HEADERS.fullmatch(name)
        and _HEADER_VALUE.fullmatch(value)  # metadata that is no header is left out
    ]
    length = ("Content-Length", str(len(body)))
    return Answer(
        int(status), (("Content-Type", safe), *sent, *_DEFENSES, length, ("Connection", "close")), body
    )
