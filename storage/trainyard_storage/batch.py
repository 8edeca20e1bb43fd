"""Batches: several calls in one request, as Google's clients send them, and their answers in one answer.

Body and answer are `multipart/mixed`, each part an HTTP message. The server and the local storage make every call by
itself, in the order of the parts. Source: https://cloud.google.com/storage/docs/batch
"""

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from http.client import responses
from urllib.parse import unquote

from trainyard_protocol.errors import InvalidArgument, NotFound, TooLarge, TrainyardError, Violation, shown

MAX_CALLS = 100
"""Calls of one batch, as in Google's APIs."""

MAX_ANSWERS = 1 << 24
"""Bytes of all answers of one batch, which are held until the last one is there."""

_ADDRESS = re.compile(r"https?://[^/?]*", re.ASCII)
_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (\S{1,65536})(?: HTTP/1\.[01])?", re.ASCII)
_NEWLINE = re.compile(rb"\A\r?\n")
_ANSWERED = ("content-type", "etag", "retry-after", "www-authenticate")
_LONGEST_HEAD = 65_536


@dataclass(frozen=True, slots=True)
class InnerCall:
    """A call of a batch. `room`: bytes that its answer may have."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    room: int


async def answer_batch(
    content_type: str,
    body: bytes,
    areas: Sequence[str],
    make: Callable[[InnerCall], Awaitable[bytes]],
    refuse: Callable[[TrainyardError], bytes],
    base: str = "",
) -> tuple[str, bytes]:
    """The type and the body of the answer. Raises InvalidArgument.

    `make` makes a call and returns its answer as a message, `refuse` returns that for an error. Calls are below one of
    `areas`, and may be below the path of the address `base`.
    """
    boundary = f"batch_{secrets.token_hex(16)}"
    answers = bytearray()
    for part in _parts(content_type, body):
        content_id = ""
        try:
            head, payload = _split(part)
            described = _headers(head)
            content_id = str(described.get("Content-ID", ""))
            answer = await make(_call(described, payload, areas, base, MAX_ANSWERS - len(answers)))
        except TrainyardError as error:
            answer = refuse(error)
        answers += f"--{boundary}\r\nContent-Type: application/http\r\n".encode()
        if content_id:
            answers += f"Content-ID: {_answer_id(content_id)}\r\n".encode()
        answers += b"\r\n" + answer + b"\r\n"
    answers += f"--{boundary}--\r\n".encode()
    return f"multipart/mixed; boundary={boundary}", bytes(answers)


def message(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    """An answer as an HTTP message. `headers` are in lower case; some are left out."""
    lines = [f"HTTP/1.1 {status} {responses.get(status, '')}", f"Content-Length: {len(body)}"]
    lines += [f"{name.title()}: {headers[name]}" for name in _ANSWERED if name in headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + body


def too_large() -> TooLarge:
    """The error of a call whose answer has no room."""
    return TooLarge(f"The answers of a batch may have {MAX_ANSWERS} bytes: make this call separately.")


def _parts(content_type: str, body: bytes) -> list[bytes]:
    """The parts of the body, each with its headers. Raises InvalidArgument.

    Not by Python's parser of mail: it takes seconds for some bodies, and every other request would wait.
    """
    boundary = _headers(b"Content-Type: " + content_type.encode("ascii", "replace")).get_boundary()
    if not content_type.startswith("multipart/mixed") or not boundary:
        raise InvalidArgument("A batch is a body of the type multipart/mixed with a boundary.")
    parts = []
    for piece in (b"\n" + body).split(b"\n--" + boundary.encode("ascii", "replace"), MAX_CALLS + 2)[1:]:
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


def _call(described: Message, payload: bytes, areas: Sequence[str], base: str, room: int) -> InnerCall:
    """The call of a part. Raises InvalidArgument, NotFound."""
    if described.get_content_type() != "application/http":
        raise InvalidArgument(Violation("batch", "each part must be of the type application/http."))
    encoding = str(described.get("Content-Transfer-Encoding", "binary")).strip().lower()
    if encoding not in ("binary", "7bit", "8bit"):
        raise InvalidArgument(Violation("batch", f"a part must be binary, not {shown(encoding)!r}."))
    line, _, rest = payload.lstrip(b"\r\n").partition(b"\n")
    match = _REQUEST_LINE.fullmatch(line.decode("latin-1").strip())
    if match is None:
        given = shown(line.decode("latin-1").strip())
        raise InvalidArgument(Violation("batch", f"a part must begin with a request line, not {given!r}."))
    target = _below(match[2], base)
    if not target.startswith(tuple(areas)):
        raise NotFound(f"A batch has calls of {' and '.join(areas)}; this is {shown(match[2])!r}.")
    if "alt=media" in unquote(target):
        raise InvalidArgument(Violation("alt", "a batch cannot download objects: request the object separately."))
    head, body = _split(rest)
    headers = {name.lower(): " ".join(str(value).split()) for name, value in _headers(head).items()}
    return InnerCall(match[1], target, headers, body, room)


def _below(address: str, base: str) -> str:
    """Path and query of a call's address, which may be whole, without the path of `base`, which it may lack."""
    secret, target = (_ADDRESS.sub("", text, count=1) for text in (base, address))
    return target.removeprefix(secret) if target.startswith(f"{secret}/") else target


def _split(message: bytes) -> tuple[bytes, bytes]:
    """Headers and body."""
    if start := _NEWLINE.match(message):
        return b"", message[start.end() :]
    end = re.search(rb"\r?\n\r?\n", message)
    return (message, b"") if end is None else (message[: end.start()], message[end.end() :])


def _answer_id(content_id: str) -> str:
    """`<id + 1>` -> `<response-id + 1>`."""
    inside = content_id.strip().removeprefix("<").removesuffix(">")
    plain = "".join(c for c in inside if c.isascii() and c.isprintable() and c not in "<>")
    return f"<response-{plain[:500]}>"
