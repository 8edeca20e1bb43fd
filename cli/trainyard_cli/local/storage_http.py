"""The HTTP server of the storage emulator: who may call, how much and for how long.

Clients of Google Cloud Storage send no token to an emulator, so the secret is the first part of the path of its
address. No web page knows it; one that is told may not use it, nor under another host name. A request is read as a
whole, with limits, before the storage sees it: who sends half a request, or reads half an answer, blocks nobody.
"""

import asyncio
import hmac
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import BinaryIO, cast

import h11

from trainyard_cli.local.storage_api import Answer, Call, Refused, StorageApi, body_limit, refusal

HOST_OF_CONTAINERS = "host.docker.internal"

_OWN_NAMES = frozenset({"127.0.0.1", "localhost", "[::1]", HOST_OF_CONTAINERS})
_HOST = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?", re.ASCII)
_TARGET = re.compile(r"/([^/?]*)(/[!-~]*)")
_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds and bytes. A body and an answer have `transfer_s`, and as long as `min_rate` takes for their bytes."""

    head_s: float = 10.0
    head_bytes: int = 1 << 14
    transfer_s: float = 30.0
    min_rate: float = 1e6
    linger_s: float = 1.0
    strangers: int = 128  # connections that have not shown the secret; beyond it the oldest is closed
    callers: int = 256  # connections that have
    concurrent: int = 32  # answers that are in memory at a time


class StorageServer:
    def __init__(self, api: StorageApi, secret: str, spool: Path, limits: Limits | None = None) -> None:
        """`spool` is a directory for bodies that are being received."""
        self._api = api
        self._secret = secret.encode()
        self._spool = spool
        self._limits = limits or Limits()
        self._names = set(_OWN_NAMES)
        self._strangers: dict[asyncio.StreamWriter, None] = {}
        self._callers = 0
        self._concurrent = asyncio.Semaphore(self._limits.concurrent)
        self._thread = ThreadPoolExecutor(1, "storage")

    def add_name(self, name: str) -> None:
        """Serve requests to that host name or address too."""
        self._names.add(name)

    async def close(self) -> None:
        """Wait until the storage has finished what it does."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection: one request."""
        connection = _Connection(reader, writer, self._limits)
        self._strangers[writer] = None
        if len(self._strangers) > self._limits.strangers:
            next(iter(self._strangers)).transport.abort()
        try:
            # Half a request ends here, as do an end of the connection and a client that does not read its answer.
            with suppress(TimeoutError, OSError, h11.ProtocolError):
                await self._serve(connection, writer)
        finally:
            self._strangers.pop(writer, None)
            writer.close()

    async def _serve(self, connection: "_Connection", writer: asyncio.StreamWriter) -> None:
        try:
            request = await connection.head()
            call_target, base = self._authorized(request)
            async with self._as_caller(writer):
                await self._answer(connection, request, call_target, base)
        except h11.RemoteProtocolError as error:
            await connection.send(refusal(HTTPStatus(error.error_status_hint), f"Not a request: {error}."))
        except Refused as refused:
            await connection.send(refusal(refused.status, refused.message))
            await connection.linger()

    def _authorized(self, request: "_Head") -> tuple[str, str]:
        """The target without the secret, and the URL that is in front of it. Raises Refused."""
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
        if target is None or not hmac.compare_digest(target[1].encode(), self._secret):
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"The address of the storage emulator is STORAGE_EMULATOR_HOST=http://{host}/SECRET. Jobs have it in "
                "their environment; the secret is in the file storage-token of the state directory.",
            )
        return target[2], f"http://{host}/{target[1]}"

    @asynccontextmanager
    async def _as_caller(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        """Count this connection among the callers. Raises Refused if there are too many."""
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

    async def _answer(self, connection: "_Connection", request: "_Head", target: str, base: str) -> None:
        limit = body_limit(request.headers, target)
        if int(request.headers.get("content-length", "0")) > limit:
            raise _too_large(limit)
        with SpooledTemporaryFile(max_size=1 << 20, dir=str(self._spool)) as body:
            size = await connection.body(cast("BinaryIO", body), limit)
            body.seek(0)
            call = Call(request.method, target, request.headers, cast("BinaryIO", body), size, base)
            async with self._concurrent:
                loop = asyncio.get_running_loop()
                await connection.send(await loop.run_in_executor(self._thread, self._api.answer, call))


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

    async def body(self, target: BinaryIO, limit: int) -> int:
        """Read the body into `target`. Raises Refused beyond `limit` bytes."""
        size, begun = 0, self._now()
        while True:
            async with self._in_time(begun, size):
                event = await self._next()
            if not isinstance(event, h11.Data):
                return size
            size += len(event.data)
            if size > limit:
                raise _too_large(limit)
            target.write(event.data)

    async def send(self, answer: Answer) -> None:
        head = h11.Response(status_code=answer.status, headers=list(answer.headers))
        self._write(self._http.send(head))
        begun = self._now()
        for start in range(0, len(answer.body), _BLOCK):
            self._write(self._http.send(h11.Data(data=answer.body[start : start + _BLOCK])))
            async with self._in_time(begun, start):
                await self._writer.drain()
        self._write(self._http.send(h11.EndOfMessage()))
        async with self._in_time(begun, len(answer.body)):
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


def _too_large(limit: int) -> Refused:
    return Refused(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is larger than {limit} bytes: upload an object in several requests (resumable).",
    )
