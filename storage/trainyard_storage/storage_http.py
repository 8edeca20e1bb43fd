"""The HTTP server of the storage emulator: who may call, how much and for how long.

Clients of Google Cloud Storage send no token to an emulator, so the secret is the first part of the path of its
address. No web page knows it; one that is told may not use it, nor under another host name. A request is read as a
whole into a file, with limits, before the storage sees it: who sends half a request, or reads half an answer, blocks
nobody.
"""

import asyncio
import hmac
import os
import re
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

import h11

from trainyard_storage.object_files import DISK_FULL, Draft
from trainyard_storage.storage_messages import (
    MAX_JSON,
    NO_ROOM,
    Answer,
    Call,
    FilePart,
    Refused,
    refusal,
)
from trainyard_storage.tensorflow_front import ESTABLISHED, TensorFlowFront

HOST_OF_CONTAINERS = "host.docker.internal"

_OWN_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]", HOST_OF_CONTAINERS})
_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?", re.ASCII)
_TARGET = re.compile(r"/([^/?]*)(/[!-~]*)")
_IDENTITY = re.compile(rb"\r\nTransfer-Encoding:[ \t]*identity[ \t]*(?=\r\n|$)", re.IGNORECASE)
_BLOCK = 1 << 16
_FILE_BLOCK = 1 << 20
_THREADS = 8
_MAX_BODY = 5 << 40  # as Google's; the disk is smaller


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and bytes. A body and an answer have `transfer_s`, and as long as `min_rate` takes for their bytes."""

    head_s: float = 10.0
    head_bytes: int = 1 << 14
    transfer_s: float = 30.0
    min_rate: float = 2e4
    linger_s: float = 1.0
    strangers: int = 128  # connections that have not shown a known secret; beyond it the oldest is closed
    callers: int = 256  # connections that have
    concurrent: int = 64  # answers that are sent at a time


class Bodies(Protocol):
    """Drafts of bodies, and the disk for them."""

    def draft(self) -> Draft: ...

    def room(self) -> int: ...


class Api(Protocol):
    """The storage behind the server. `answer` is for several threads."""

    @property
    def store(self) -> Bodies: ...

    def answer(self, call: Call) -> Answer: ...

    def is_known(self, secret: str) -> bool:
        """Whether the secret is one of a caller, as far as the storage knows without asking."""
        ...

    def close(self) -> None: ...


class StorageServer:
    def __init__(
        self, api: Api, secret: str | None, limits: Limits | None = None, front: TensorFlowFront | None = None
    ) -> None:
        """`secret` None: each caller has its own, which `api` judges."""
        self._api = api
        self._secret = None if secret is None else secret.encode()
        self._limits = limits or Limits()
        self._front = front
        self._names = set(_OWN_NAMES)
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._callers = 0
        self._concurrent = asyncio.Semaphore(self._limits.concurrent)
        self._threads = ThreadPoolExecutor(_THREADS, "storage")

    def add_name(self, name: str) -> None:
        """Serve requests to that host name or address too."""
        self._names.add(name)

    async def close(self) -> None:
        """Wait until the storage has finished what it does."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._api.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: one request."""
        connection = _Connection(reader, writer, self._limits)
        self._strangers[writer] = None
        if len(self._strangers) > self._limits.strangers:
            next(iter(self._strangers)).transport.abort()
        try:
            # Half a request ends here, as do an end of the connection and a client that does not read its answer.
            with suppress(TimeoutError, OSError, h11.ProtocolError):
                await self._serve(connection, reader, writer)
        finally:
            self._strangers.pop(writer, None)
            writer.close()

    async def _serve(
        self, connection: "_Connection", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            request = await connection.head()
            if request.method == "CONNECT" and self._front is not None:
                await self._connect(self._front, request, reader, writer)
                return
            call_target, base, secret = self._authorized(request)
            async with self._as_caller(writer, secret):
                await self._answer(connection, request, call_target, base, secret)
        except h11.RemoteProtocolError as error:
            await connection.send(refusal(HTTPStatus(error.error_status_hint), f"Not a request: {error}."))
        except Refused as refused:
            await connection.send(refusal(refused.status, refused.message))
            await connection.linger()

    async def _connect(
        self,
        front: TensorFlowFront,
        request: "_Head",
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Serve a connection as Google to TensorFlow, or pass it on. Raises Refused."""
        secret = front.authorize(request.headers)
        if not front.is_ours(request.target, request.headers):
            self._strangers.pop(writer, None)
            await front.tunnel(request.target, reader, writer)
            return
        async with self._as_caller(writer, secret):
            writer.write(ESTABLISHED)
            await writer.start_tls(front.context)
            connection = _Connection(reader, writer, self._limits)
            await connection.read_of_tensorflow()
            inside = await connection.head()
            base = f"https://{request.target.rpartition(':')[0]}"
            try:
                await self._answer(connection, inside, inside.target, base, secret)
            except Refused as refused:
                await connection.send(refusal(refused.status, refused.message))

    def _authorized(self, request: "_Head") -> tuple[str, str, str]:
        """The target without the secret, the URL that is in front of it, and the secret. Raises Refused."""
        host = request.headers.get("host", "")
        match = _HOST.fullmatch(host)
        if match is None or match[1].lower() not in self._names:
            names = ", ".join(sorted(self._names))
            raise Refused(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"The storage emulator answers to {names}, not to {host[:100]!r}.",
            )
        if "origin" in request.headers or request.headers.get("sec-fetch-site", "none") != "none":
            raise Refused(HTTPStatus.FORBIDDEN, "The storage emulator serves programs, not web pages.")
        target = _TARGET.fullmatch(request.target)
        if target is None or not _is_secret(target[1], self._secret):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"The address of the storage emulator is STORAGE_EMULATOR_HOST=http://{host}/SECRET. Jobs have it in "
                "their environment; the secret is in the file storage-token of the state directory.",
            )
        return target[2], f"http://{host}/{target[1]}", target[1]

    @asynccontextmanager
    async def _as_caller(self, writer: asyncio.StreamWriter, secret: str) -> AsyncIterator[None]:
        """Count this connection among the callers, if its secret is known. Raises Refused if there are too many."""
        if not self._api.is_known(secret):
            yield
            return
        if self._callers >= self._limits.callers:
            raise Refused(
                HTTPStatus.SERVICE_UNAVAILABLE, "Too many requests to the storage at a time: try again."
            )
        self._callers += 1
        self._strangers.pop(writer, None)
        try:
            yield
        finally:
            self._callers -= 1

    async def _answer(
        self, connection: "_Connection", request: "_Head", target: str, base: str, secret: str
    ) -> None:
        limit = self._body_limit(request.headers, target)
        size = int(request.headers.get("content-length", "0"))
        if size > limit:
            raise _too_large(limit)
        if size > max(MAX_JSON, self._api.store.room()):  # small ones may free some, as deletions in a batch
            raise _no_room()
        body = self._api.store.draft()
        try:
            await _received(connection, body, limit)
            call = Call(request.method, target, request.headers, body, base, secret)
            async with self._concurrent:
                loop = asyncio.get_running_loop()
                answer = await loop.run_in_executor(self._threads, self._api.answer, call)
                await connection.send(answer, with_body=request.method != "HEAD")
        finally:
            body.close()

    @staticmethod
    def _body_limit(headers: Mapping[str, str], target: str) -> int:
        """The largest body in bytes: of JSON, which is parsed as a whole, or of an object."""
        is_json = headers.get("content-type", "").lower().startswith("application/json")
        if is_json and "upload_id=" not in target and "uploadType=media" not in target:
            return MAX_JSON
        return _MAX_BODY


@dataclass(frozen=True, slots=True)
class _Head:
    """Method, target and headers; names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]


class _Connection:
    """One connection: reads a request and sends an answer, both within the limits. Raises TimeoutError beyond."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limits: Limits) -> None:
        self._reader, self._writer, self._limits = reader, writer, limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)

    async def head(self) -> _Head:
        async with asyncio.timeout(self._limits.head_s):
            event = await self._next()
        if not isinstance(event, h11.Request):
            raise ConnectionAbortedError  # closed without a request
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        return _Head(event.method.decode("ascii"), event.target.decode("latin-1"), headers)

    async def read_of_tensorflow(self) -> None:
        """Read the head, and drop `Transfer-Encoding: identity`, which today's HTTP does not know."""
        read = b""
        async with asyncio.timeout(self._limits.head_s):
            while b"\r\n\r\n" not in read and len(read) < self._limits.head_bytes:
                block = await self._reader.read(_BLOCK)
                if not block:
                    break
                read += block
        head, end, rest = read.partition(b"\r\n\r\n")
        self._http.receive_data(_IDENTITY.sub(b"", head) + end + rest)

    async def body(self, draft: Draft, limit: int) -> None:
        """Read the body into `draft`. Raises Refused beyond `limit` bytes."""
        begun = self._now()
        while True:
            async with self._in_time(begun, draft.size):
                event = await self._next()
            if not isinstance(event, h11.Data):
                return
            if draft.size + len(event.data) > limit:
                raise _too_large(limit)
            draft.write(event.data)

    async def send(self, answer: Answer, with_body: bool = True) -> None:
        head = h11.Response(status_code=answer.status, headers=list(answer.headers))
        self._write(self._http.send(head))
        begun, sent = self._now(), 0
        async for block in _blocks(answer.body, with_body):
            self._write(self._http.send(h11.Data(data=block)))
            sent += len(block)
            async with self._in_time(begun, sent):
                await self._writer.drain()
        self._write(self._http.send(h11.EndOfMessage()))
        async with self._in_time(begun, sent):
            await self._writer.drain()

    async def linger(self) -> None:
        """Read on for a moment: a client that is still sending would otherwise lose the answer."""
        self._writer.write_eof()
        async with asyncio.timeout(self._limits.linger_s):
            while await self._reader.read(_BLOCK):
                pass

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            self._http.receive_data(await self._reader.read(_BLOCK))
        return event

    def _write(self, data: bytes | None) -> None:
        self._writer.write(data or b"")

    def _in_time(self, begun: float, size: int) -> asyncio.Timeout:
        return asyncio.timeout_at(begun + self._limits.transfer_s + size / self._limits.min_rate)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def _received(connection: _Connection, body: Draft, limit: int) -> None:
    """Receive a body. Raises Refused, also where the disk fills meanwhile."""
    try:
        await connection.body(body, limit)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise _no_room() from error
        raise  # of the connection


async def _blocks(body: bytes | FilePart, is_wanted: bool) -> AsyncIterator[bytes]:
    """The body in blocks; its file is closed in the end."""
    if isinstance(body, bytes):
        for start in range(0, len(body) if is_wanted else 0, _BLOCK):
            yield body[start : start + _BLOCK]
        return
    with body.file as file:
        at, end = body.start, body.start + (body.length if is_wanted else 0)
        while at < end:
            block = await asyncio.to_thread(os.pread, file.fileno(), min(_FILE_BLOCK, end - at), at)
            if not block:
                raise ConnectionAbortedError  # the file is shorter than it was
            at += len(block)
            yield block


def _is_secret(given: str, expected: bytes | None) -> bool:
    return bool(given) if expected is None else hmac.compare_digest(given.encode(), expected)


def _too_large(limit: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is larger than {limit} bytes, which is what this call may have.",
    )


def _no_room() -> Refused:
    return Refused(HTTPStatus.INSUFFICIENT_STORAGE, NO_ROOM)
