"""Requests and answers of the local storage: what they carry, and their JSON, XML and headers. Pure."""

import base64
import json
import re
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import format_datetime
from html import escape
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import parse_qsl

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.net.storage_calls import (
    BUCKET_RULE,
    DOWNLOADS,
    JSON_API,
    LONGEST_NAME,
    inert_type,
    is_bucket_name,
    object_path,
)
from trainyard_storage.files import Draft
from trainyard_storage.records import BucketRecord, Conditions, ObjectRecord, Properties

MAX_JSON = 1 << 20
NO_ROOM = "The disk of the storage is full, except for its reserve. Free some space there, and try again."
_MOST_PARAMETERS = 200
_MOST_PROPERTIES = 1 << 13
_HEADER_VALUE = re.compile(r"[ -~]*")
_METADATA_NAME = re.compile(r"[\w.-]+", re.ASCII)
_INERT = "application/octet-stream"
DEFENSES = (
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Disposition", "attachment"),
    ("Content-Security-Policy", "sandbox; default-src 'none'"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
_TEXTS = (
    *("contentType", "contentEncoding", "contentDisposition", "contentLanguage"),
    *("cacheControl", "customTime", "storageClass"),
)
_REASONS = {
    HTTPStatus.BAD_REQUEST: "invalid",
    HTTPStatus.FORBIDDEN: "forbidden",
    HTTPStatus.NOT_FOUND: "notFound",
    HTTPStatus.CONFLICT: "conflict",
    HTTPStatus.PRECONDITION_FAILED: "conditionNotMet",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "uploadTooLarge",
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE: "requestedRangeNotSatisfiable",
    HTTPStatus.SERVICE_UNAVAILABLE: "backendError",
    HTTPStatus.INSUFFICIENT_STORAGE: "backendError",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internalError",
}


@dataclass(frozen=True, slots=True)
class Call:
    """A request. `target` is path and query; `base` is the URL in front of it, with which the caller can come back,
    `secret` the one that it gave."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: Draft
    base: str
    secret: str = ""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> Mapping[str, str]:
        """Raises Refused."""
        try:
            pairs = parse_qsl(self.target.partition("?")[2], keep_blank_values=True, max_num_fields=_MOST_PARAMETERS)
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, f"A query may have {_MOST_PARAMETERS} parameters.") from None
        return dict(pairs)

    def overridden(self) -> "Call":
        """The call that a POST with X-HTTP-Method-Override means."""
        given = self.headers.get("x-http-method-override")
        return replace(self, method=given) if given and self.method == "POST" else self

    def json(self) -> Mapping[str, Any]:
        """The body as a JSON object; {} for none. Raises Refused."""
        if self.body.size > MAX_JSON:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The JSON is larger than {MAX_JSON} bytes.")
        return json_object(self.body.read())


@dataclass(frozen=True, slots=True)
class FilePart:
    """Part of an open file."""

    file: BinaryIO
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | FilePart | AsyncIterator[bytes] = b""


class Refused(Exception):
    """A request that is not served: `status` and the message say why."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


def json_object(text: bytes) -> Mapping[str, Any]:
    """A JSON object; {} for an empty text. Raises Refused."""
    try:
        value = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"The body is no JSON: {type(error).__name__}.") from error
    if not isinstance(value, dict):
        raise Refused(HTTPStatus.BAD_REQUEST, "The body must be a JSON object.")
    return value


def properties(resource: Mapping[str, Any], before: Properties | None = None) -> Properties:
    """The description of an object in a resource, over the one before; None removes a field. Raises Refused."""
    settable = dict(before or {})
    for name in _TEXTS:
        value = resource.get(name, settable.get(name))
        if value is not None and not isinstance(value, str):
            raise Refused(HTTPStatus.BAD_REQUEST, f"{name} must be a text.")
        settable[name] = value
    given = resource.get("metadata", settable.get("metadata"))
    if given is not None:
        if not isinstance(given, dict) or any(not isinstance(value, str | None) for value in given.values()):
            raise Refused(HTTPStatus.BAD_REQUEST, "metadata must be an object with texts.")
        settable["metadata"] = {name: value for name, value in given.items() if value is not None}
    else:
        settable["metadata"] = None
    return limited({name: value for name, value in settable.items() if value is not None})


def limited(described: Mapping[str, Any]) -> Mapping[str, Any]:
    """Properties of an object or a bucket, all of which is in every listing. Raises Refused for too many."""
    if len(json.dumps(described)) > _MOST_PROPERTIES:
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            f"Metadata, labels and the like of one object or bucket may have {_MOST_PROPERTIES} bytes of JSON.",
        )
    return described


def patched(resource: Mapping[str, Any], before: Properties) -> Properties:
    """Properties of a patch: as `properties`, but metadata are merged name by name. Raises Refused."""
    given = resource.get("metadata")
    if isinstance(given, dict):
        resource = {**resource, "metadata": {**before.get("metadata", {}), **given}}
    return properties(resource, before)


def conditions(query: Mapping[str, str], prefix: str = "if") -> Conditions:
    """The preconditions of a query; `prefix` is ifSource for those of what is copied. Raises Refused."""
    names = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
    return Conditions(*(number(query, f"{prefix}{name}") for name in names))


def number(query: Mapping[str, Any], name: str) -> int | None:
    """A number of a query or a resource. Raises Refused."""
    text = str(query.get(name) or "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name} must be a number; this is {text[:100]!r}.")
    return int(text)


def check_bucket(name: object) -> str:
    """Raises Refused."""
    if not isinstance(name, str) or not is_bucket_name(name):
        raise Refused(HTTPStatus.BAD_REQUEST, f"A bucket's name has {BUCKET_RULE}.")
    return name


def check_name(name: object) -> str:
    """Raises Refused."""
    if (
        not isinstance(name, str)
        or name in ("", ".", "..")
        or not {"\r", "\n", "\0"}.isdisjoint(name)
        or len(name.encode(errors="replace")) > LONGEST_NAME
    ):
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"An object's name has 1 to {LONGEST_NAME} bytes, no line ends, and is not . or .."
        )
    name.encode()  # half a surrogate pair is no text
    return name


def object_resource(record: ObjectRecord, base: str) -> Mapping[str, Any]:
    path = object_path(record.bucket, record.name)
    generation = str(record.generation)
    resource = {
        "kind": "storage#object",
        "id": f"{record.bucket}/{record.name}/{generation}",
        "selfLink": f"{base}{JSON_API}{path}",
        "mediaLink": f"{base}{DOWNLOADS}{JSON_API}{path}?generation={generation}&alt=media",
        "name": record.name,
        "bucket": record.bucket,
        "generation": generation,
        "metageneration": str(record.metageneration),
        "contentType": _INERT,
        "storageClass": "STANDARD",
        "size": str(record.size),
        "crc32c": record.crc32c,
        "etag": _etag(record),
        "timeCreated": _time(record.generation),
        "updated": _time(record.updated),
        "timeStorageClassUpdated": _time(record.generation),
        "timeFinalized": _time(record.generation),
        **record.properties,
    }
    if record.md5:
        resource["md5Hash"] = record.md5
    if record.components:
        resource["componentCount"] = record.components
    return resource


def bucket_resource(record: BucketRecord, base: str) -> Mapping[str, Any]:
    return {
        "kind": "storage#bucket",
        "id": record.name,
        "selfLink": f"{base}{JSON_API}/b/{record.name}",
        "name": record.name,
        "projectNumber": "0",
        "metageneration": "1",
        "location": "LOCAL",
        "locationType": "region",
        "storageClass": "STANDARD",
        "etag": "CAE=",
        "timeCreated": _time(record.created),
        "updated": _time(record.created),
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},
        **record.properties,
    }


def object_headers(record: ObjectRecord) -> dict[str, str]:
    """The headers of an object's content."""
    hashes = f"crc32c={record.crc32c}" + (f",md5={record.md5}" if record.md5 else "")
    headers = {
        "Content-Type": record.properties.get("contentType", _INERT),
        "Accept-Ranges": "bytes",
        "ETag": f'"{_etag(record)}"',
        "Last-Modified": format_datetime(_moment(record.updated), usegmt=True),
        "X-Goog-Generation": str(record.generation),
        "X-Goog-Metageneration": str(record.metageneration),
        "X-Goog-Hash": hashes,
        "X-Goog-Storage-Class": "STANDARD",
        "X-Goog-Stored-Content-Length": str(record.size),
        "X-Goog-Stored-Content-Encoding": record.properties.get("contentEncoding", "identity"),
    }
    if encoding := record.properties.get("contentEncoding"):
        headers["Content-Encoding"] = encoding
    for name, value in record.properties.get("metadata", {}).items():
        if _METADATA_NAME.fullmatch(name):
            headers[f"X-Goog-Meta-{name}"] = value
    return headers


def json_answer(value: Mapping[str, Any], query: Mapping[str, str]) -> Answer:
    """A JSON answer, with the fields that the query selects. Raises Refused."""
    if fields := query.get("fields") or query.get("$fields"):
        from trainyard_protocol.net import field_mask

        try:
            value = field_mask.apply(field_mask.parse(fields), value)
        except InvalidArgument as error:
            raise Refused(HTTPStatus.BAD_REQUEST, error.message) from error
    pretty = query.get("prettyPrint", query.get("$prettyPrint", "true")) != "false"
    form: dict[str, Any] = {"indent": 2} if pretty else {"separators": (",", ":")}
    body = json.dumps(value, **form).encode()
    return answer(HTTPStatus.OK, {"Content-Type": "application/json; charset=UTF-8"}, body)


def refusal(status: HTTPStatus, message: str) -> Answer:
    """An answer in the form that Google's clients show."""
    reason = _REASONS.get(status, status.phrase)
    errors = [{"domain": "global", "reason": reason, "message": message}]
    error = {"error": {"code": status.value, "message": message, "errors": errors}}
    return answer(status, {"Content-Type": "application/json; charset=UTF-8"}, json.dumps(error).encode())


def plain_refusal(status: HTTPStatus, message: str) -> Answer:
    """The same for calls of the XML API."""
    code = "NoSuchKey" if status is HTTPStatus.NOT_FOUND else status.phrase.replace(" ", "")
    text = f"<Error><Code>{code}</Code><Message>{escape(message)}</Message></Error>"
    text = f"<?xml version='1.0' encoding='UTF-8'?>{text}"
    return answer(status, {"Content-Type": "text/plain; charset=UTF-8"}, text.encode())


def answer(status: int, headers: Mapping[str, str], body: bytes | FilePart = b"") -> Answer:
    """An answer that no browser shows as a page."""
    safe = inert_type(headers.get("Content-Type", _INERT))
    sent = _sendable((name, value) for name, value in headers.items() if name != "Content-Type")
    size = len(body) if isinstance(body, bytes) else body.length
    length = ("Content-Length", str(size))
    return Answer(status, (("Content-Type", safe), *sent, *DEFENSES, length), body)


def _sendable(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The object without metadata that are no header."""
    return [(name, value) for name, value in headers if _HEADER_VALUE.fullmatch(value)]


def _etag(record: ObjectRecord) -> str:
    return base64.b64encode(f"{record.generation}/{record.metageneration}".encode()).decode()


def _moment(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 10**6, UTC)


def _time(microseconds: int) -> str:
    return _moment(microseconds).isoformat(timespec="milliseconds").replace("+00:00", "Z")
