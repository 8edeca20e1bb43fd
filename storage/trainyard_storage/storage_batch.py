"""Batches: several calls in one request to the local storage, as `multipart/mixed`.

Source: https://cloud.google.com/storage/docs/batch
"""

import re
import secrets
from collections.abc import Callable, Iterator
from email.message import Message
from email.parser import BytesParser
from http import HTTPStatus

from trainyard_protocol.net.storage_calls import JSON_API
from trainyard_storage.object_files import Draft
from trainyard_storage.storage_messages import (
    MAX_JSON,
    Answer,
    Call,
    FilePart,
    Refused,
    answer,
    refusal,
)

_MOST_CALLS = 100
_REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (\S{1,16384})(?: HTTP/1\.[01])?", re.ASCII)
_ADDRESS = re.compile(r"https?://[^/?]*", re.ASCII)
_CALL = re.compile(rb"^([A-Z]{1,16} )(\S{1,16384})", re.MULTILINE)
_HEAD_END = re.compile(rb"\r?\n\r?\n")


def answer_batch(call: Call, answer_one: Callable[[Call], Answer], draft: Callable[[], Draft]) -> Answer:
    """The answers to all calls of a batch, in its order. Raises Refused."""
    boundary = f"batch_{secrets.token_hex(16)}"
    body = bytearray()
    for part in _parts(call):
        headers, inner = _split(part)
        made = _answered(call, inner, answer_one, draft)
        content_id = re.sub(r"[^\w+/=.@ -]", "", str(headers.get("Content-ID", "")), flags=re.ASCII)
        body += f"--{boundary}\r\nContent-Type: application/http\r\n".encode()
        body += f"Content-ID: <response-{content_id[:200]}>\r\n\r\n".encode() if content_id else b"\r\n"
        phrase = HTTPStatus(made.status).phrase
        lines = [f"HTTP/1.1 {made.status} {phrase}"]
        lines += [f"{name}: {value}" for name, value in made.headers if name.startswith("Content-")]
        assert isinstance(made.body, bytes)
        body += "\r\n".join([*lines, "", ""]).encode("latin-1") + made.body + b"\r\n"
    body += f"--{boundary}--\r\n".encode()
    return answer(HTTPStatus.OK, {"Content-Type": f"multipart/mixed; boundary={boundary}"}, bytes(body))


def _answered(
    outer: Call, message: bytes, answer_one: Callable[[Call], Answer], draft: Callable[[], Draft]
) -> Answer:
    line, _, rest = message.lstrip(b"\r\n").partition(b"\n")
    match = _REQUEST_LINE.fullmatch(line.decode("latin-1").strip())
    target = _target(match[2], outer.base) if match else ""
    if match is None or not target.startswith(f"{JSON_API}/"):
        return refusal(HTTPStatus.BAD_REQUEST, f"A batch has calls of {JSON_API}, not this.")
    headers, content = _split(rest)
    body = draft()
    try:
        body.write(content)
        sent = {name.lower(): str(value) for name, value in headers.items()}
        made = answer_one(Call(match[1], target, sent, body, outer.base))
    finally:
        body.close()
    if isinstance(made.body, FilePart):
        made.body.file.close()
        return refusal(HTTPStatus.BAD_REQUEST, "A batch has no downloads.")
    return made


def below_the_root(batch: bytes, base: str) -> bytes:
    """The batch with its calls' addresses as a server without a secret in its own has them."""
    secret = _path(base)

    def moved(line: re.Match[bytes]) -> bytes:
        path = _path(line[2].decode("latin-1"))
        is_below = bool(secret) and path.startswith(f"{secret}/")
        return line[1] + path.removeprefix(secret).encode("latin-1") if is_below else line[0]

    return _CALL.sub(moved, batch)


def _target(address: str, base: str) -> str:
    """Path and query of a call's address, which may be whole: below the address of the storage, `base`."""
    secret, path = _path(base), _path(address)
    return path.removeprefix(secret) if path.startswith(f"{secret}/") else path


def _path(address: str) -> str:
    """An address without scheme and host, which it may lack."""
    return _ADDRESS.sub("", address, count=1) if _ADDRESS.match(address) else address


def _parts(call: Call) -> Iterator[bytes]:
    described = BytesParser().parsebytes(
        b"Content-Type: " + call.headers.get("content-type", "").encode("latin-1"), headersonly=True
    )
    boundary = described.get_boundary()
    if not boundary or call.body.size > MAX_JSON:
        raise Refused(
            HTTPStatus.BAD_REQUEST,
            f"A batch is multipart/mixed with a boundary, and at most {MAX_JSON} bytes.",
        )
    pieces = (b"\n" + call.body.read()).split(b"\n--" + boundary.encode("ascii", "replace"))[1:]
    if len(pieces) > _MOST_CALLS + 1:
        raise Refused(HTTPStatus.BAD_REQUEST, f"A batch may have {_MOST_CALLS} calls.")
    for piece in pieces:
        if piece.startswith(b"--"):
            return
        yield piece.partition(b"\n")[2].removesuffix(b"\r")


def _split(message: bytes) -> tuple[Message, bytes]:
    """Headers and content."""
    found = _HEAD_END.search(b"\n" + message)
    head, content = message, b""
    if found is not None:
        head, content = message[: max(0, found.start() - 1)], message[found.end() - 1 :]
    return BytesParser().parsebytes(head, headersonly=True), content
