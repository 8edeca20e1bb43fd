"""gs:// as an ASGI application: who may call, how much, and the answer of what is behind.

Clients of Google Cloud Storage send no token to an emulator, so the secret is the first part of the path of its
address. No web page knows it; one that is told may not use it, nor under another host name. A request is read as a
whole into a file, with limits, before the storage sees it: who sends half a request, or reads half an answer, blocks
nobody.
"""

import asyncio
import hmac
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.net.storage_calls import JSON_API, Kind, parse
from trainyard_storage.batch import InnerCall, answer_batch, message, too_large
from trainyard_storage.files import DISK_FULL, Draft
from trainyard_storage.messages import MAX_JSON, NO_ROOM, Answer, Call, FilePart, Refused, answer, refusal

if TYPE_CHECKING:
    from trainyard_storage.server import Connection
    from trainyard_storage.tensorflow import TensorFlowProxy

HOST_OF_CONTAINERS = "host.docker.internal"

_OWN_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]", HOST_OF_CONTAINERS})
_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?", re.ASCII)
_TARGET = re.compile(r"/([^/?]*)(/[!-~]*)")
_OWN_PATHS = (
    "/storage/v1/",
    "/upload/storage/v1/",
    "/resumable/upload/storage/v1/",
    "/download/storage/v1/",
    "/batch/storage/",
)
"""Paths of Google's own API: gcloud keeps no other part of an address, and has the secret as a token."""

_BLOCK = 1 << 16
_FILE_BLOCK = 1 << 18
_NO_BODY = Draft(Path())  # of a call that is still to be received
_MAX_BODY = 5 << 40  # as Google's; the disk is smaller


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers of connections."""

    strangers: int = 128  # connections that serve no known secret now; beyond it the oldest is closed
    callers: int = 256  # connections that do


class Bodies(Protocol):
    """Drafts of bodies, and the disk for them."""

    def draft(self) -> Draft: ...

    def room(self) -> int: ...


class Backend(Protocol):
    """The storage behind the application."""

    @property
    def bodies(self) -> Bodies: ...

    def answered(self, call: Call) -> AbstractAsyncContextManager[Answer]:
        """The answer, which is sent before the end. Raises Refused, TrainyardError."""
        ...

    def is_known(self, secret: str) -> bool:
        """Whether the secret is one of a caller, as far as the storage knows without asking."""
        ...

    async def close(self) -> None: ...


class Slots:
    """Open connections: of strangers the oldest is closed for a new one, callers have slots of their own."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._strangers: dict[Connection, None] = {}
        self._callers = 0

    def add(self, connection: "Connection") -> None:
        self._strangers[connection] = None
        if len(self._strangers) > self._limits.strangers:
            oldest = next(iter(self._strangers))
            self.remove(oldest)
            oldest.transport.abort()

    def remove(self, connection: "Connection") -> None:
        self._strangers.pop(connection, None)

    @contextmanager
    def of_caller(self, connection: "Connection") -> Iterator[None]:
        """Count a connection among the callers. Raises Refused if there are too many."""
        if self._callers >= self._limits.callers:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests to the storage at a time: try again.")
        self._callers += 1
        self.remove(connection)
        try:
            yield
        finally:
            self._callers -= 1
            if not connection.transport.is_closing():
                self.add(connection)


class StorageApp:
    """The application, for connections of `trainyard_storage.server`: they are in the state of its requests."""

    def __init__(
        self, backend: Backend, secret: str | None, limits: Limits | None = None, proxy: "TensorFlowProxy | None" = None
    ) -> None:
        """`secret` None: each caller has its own, which the backend judges."""
        self.proxy = proxy
        self.slots = Slots(limits or Limits())
        self._backend = backend
        self._secret = None if secret is None else secret.encode()
        self._names = set(_OWN_NAMES)

    def add_name(self, name: str) -> None:
        """Serve requests to that host name or address too."""
        self._names.add(name)

    async def close(self) -> None:
        await self._backend.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        connection: Connection = scope["state"]["connection"]
        try:
            call = self._call(scope)
            if not self._backend.is_known(call.secret):
                await self._serve(connection, call, receive, send)
                return
            with self.slots.of_caller(connection):
                await self._serve(connection, call, receive, send)
        except Refused as refused:
            # The connection stays, and the rest of a body is dropped: its client would otherwise lose the answer.
            await _send(refusal(refused.status, refused.message), connection, send)
        except ConnectionError:
            connection.transport.abort()  # its client is gone, or a body ends before its end

    def _call(self, scope: Any) -> Call:
        """The call, without a body yet. Raises Refused."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method, query = scope["method"], scope["query_string"].decode("latin-1")
        target = scope["raw_path"].decode("latin-1") + (f"?{query}" if query else "")
        if method == "CONNECT":
            raise Refused(HTTPStatus.FORBIDDEN, "This proxy is for the jobs of this machine's agent.")
        if base := scope["state"].get("base"):  # TensorFlow has shown the secret to the proxy
            return Call(method, target, headers, _NO_BODY, base, scope["state"]["secret"])
        target, base, secret = self._authorized(headers, target)
        return Call(method, target, headers, _NO_BODY, base, secret)

    def _authorized(self, headers: Mapping[str, str], target: str) -> tuple[str, str, str]:
        """The target without the secret, the URL that is in front of it, and the secret. Raises Refused."""
        host = headers.get("host", "")
        match = _HOST.fullmatch(host)
        if match is None or match[1].lower() not in self._names:
            names = ", ".join(sorted(self._names))
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST, f"The storage emulator answers to {names}, not to {host[:100]!r}."
            )
        if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
            raise Refused(HTTPStatus.FORBIDDEN, "The storage emulator serves programs, not web pages.")
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        if bearer and target.startswith(_OWN_PATHS) and _is_secret(bearer, self._secret):
            return target, f"http://{host}/{bearer}", bearer
        parts = _TARGET.fullmatch(target)
        if parts is None or not _is_secret(parts[1], self._secret):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"The address of the storage emulator is STORAGE_EMULATOR_HOST=http://{host}/SECRET. Jobs have it in "
                "their environment; the secret is in the file storage-token of the state directory.",
            )
        return parts[2], f"http://{host}/{parts[1]}", parts[1]

    async def _serve(self, connection: "Connection", call: Call, receive: Any, send: Any) -> None:
        limit = _body_limit(call.headers, call.target)
        size = int(call.headers.get("content-length", "0"))
        if size > limit:
            raise _too_large(limit)
        if size > max(MAX_JSON, self._backend.bodies.room()):  # small ones may free some, as deletions in a batch
            raise _no_room()
        body = self._backend.bodies.draft()
        try:
            await _receive(receive, body, limit)
            received = replace(call, body=body).overridden()
            async with self._answered(received) as reply:
                closing = replace(reply, headers=(*reply.headers, ("Connection", "close")))
                await _send(closing, connection, send, has_body=call.method != "HEAD")
        finally:
            body.close()

    @asynccontextmanager
    async def _answered(self, call: Call) -> AsyncIterator[Answer]:
        """Raises Refused."""
        asked = parse(call.method, call.path)
        try:
            if asked is not None and asked.kind is Kind.BATCH:
                yield await self._batch(call)
                return
            async with self._backend.answered(call) as reply:
                yield reply
        except TrainyardError as error:
            raise Refused(HTTPStatus(error.http_status), error.message) from error

    async def _batch(self, call: Call) -> Answer:
        """The answers to all calls of a batch, in its order. Raises InvalidArgument, Refused."""
        if call.body.size > MAX_JSON:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A batch may have {MAX_JSON} bytes.")

        async def make(inner: InnerCall) -> bytes:
            body = self._backend.bodies.draft()
            try:
                body.write(inner.body)
                headers = {**inner.headers, "content-length": str(len(inner.body))}
                return await self._answer_inside(
                    replace(call, method=inner.method, target=inner.target, headers=headers, body=body), inner
                )
            finally:
                body.close()

        kind = call.headers.get("content-type", "")
        kind, body = await answer_batch(kind, call.body.read(), (f"{JSON_API}/",), make, _refused_inside, call.base)
        return answer(HTTPStatus.OK, {"Content-Type": kind}, body)

    async def _answer_inside(self, call: Call, inner: InnerCall) -> bytes:
        content = bytearray()
        try:
            async with self._backend.answered(call.overridden()) as reply:
                async for block in _blocks(reply.body):
                    content += block
                    if len(content) > inner.room:
                        raise too_large()
        except Refused as refused:
            return _inside(refusal(refused.status, refused.message))
        return message(reply.status, {name.lower(): value for name, value in reply.headers}, bytes(content))


def _refused_inside(error: TrainyardError) -> bytes:
    return _inside(refusal(HTTPStatus(error.http_status), error.message))


def _inside(reply: Answer) -> bytes:
    """An answer in memory as a part of a batch's."""
    assert isinstance(reply.body, bytes)
    return message(reply.status, {name.lower(): value for name, value in reply.headers}, reply.body)


def _body_limit(headers: Mapping[str, str], target: str) -> int:
    """The largest body in bytes: of JSON, which is parsed as a whole, or of an object."""
    is_json = headers.get("content-type", "").lower().startswith("application/json")
    if is_json and "upload_id=" not in target and "uploadType=media" not in target:
        return MAX_JSON
    return _MAX_BODY


async def _receive(receive: Any, body: Draft, limit: int) -> None:
    """Receive a body of at most `limit` bytes. Raises Refused, also where the disk fills meanwhile, and
    ConnectionAbortedError."""
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ConnectionAbortedError
        if body.size + len(event["body"]) > limit:
            raise _too_large(limit)
        try:
            body.write(event["body"])
        except OSError as error:
            if error.errno in DISK_FULL:
                raise _no_room() from error
            raise
        more = event["more_body"]


async def _send(reply: Answer, connection: "Connection", send: Any, *, has_body: bool = True) -> None:
    """Send an answer, until its client is gone."""
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    if has_body:
        async for block in _blocks(reply.body):
            if connection.transport.is_closing():
                return
            await send({"type": "http.response.body", "body": block, "more_body": True})
    await send({"type": "http.response.body"})


async def _blocks(body: bytes | FilePart | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        for start in range(0, len(body), _BLOCK):
            yield body[start : start + _BLOCK]
        return
    if not isinstance(body, FilePart):
        async for block in body:
            yield block
        return
    at, end = body.start, body.start + body.length
    while at < end:
        block = await asyncio.to_thread(os.pread, body.file.fileno(), min(_FILE_BLOCK, end - at), at)
        if not block:
            raise ConnectionAbortedError  # the file is shorter than it was
        at += len(block)
        yield block


def _is_secret(given: str, expected: bytes | None) -> bool:
    return bool(given) if expected is None else hmac.compare_digest(given.encode(), expected)


def _too_large(limit: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is larger than {limit} bytes, which is what this call may have."
    )


def _no_room() -> Refused:
    return Refused(HTTPStatus.INSUFFICIENT_STORAGE, NO_ROOM)
