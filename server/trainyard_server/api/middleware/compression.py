"""Compression of pages, JSON and the streams of open pages with gzip, as middleware."""

import re
import zlib

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_STREAM = "text/event-stream"
_COMPRESSED = frozenset(("text/html", "text/csv", "application/json", _STREAM))
_UNCOMPRESSED_PATHS = ("/agent/", "/download/", "/storage/", "/upload/")
_LIVE_PATH = "/live/"
_SMALLEST = 1000  # bytes: a smaller answer fits into a packet as it is
_LEVEL = 1  # a page takes a third of the time of zlib's default, and is a third larger
_WINDOW_BITS, _MEMORY_LEVEL = 14, 7  # half of the default memory: streams are many, and stay open
_GZIP = 16  # added to the window bits: with the header of gzip
_REFUSED = re.compile(r"q\s*=\s*0(?:\.0*)?")
_FOREIGN_SITES = ("cross-site", "same-site")


class Compression:
    """Compresses answers for clients that accept gzip, each part of a stream by itself, so that no event waits for the
    next one.

    Answers to agents and followed logs stay as they are: programs read them, most often on this machine. So do
    objects of the storage, whose sizes and digests clients check, and answers to what a page of another site makes a
    browser request: from the sizes of such answers that site could guess the secrets in them
    (https://www.breachattack.com).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_UNCOMPRESSED_PATHS):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_wanted = (
            scope["method"] != "HEAD"
            and _accepts_gzip(headers.get("accept-encoding", ""))
            and headers.get("sec-fetch-site") not in _FOREIGN_SITES
        )
        await self._app(scope, receive, _Answer(send, is_wanted, scope["path"].startswith(_LIVE_PATH)).send)


class _Answer:
    """One answer. Its start waits for the first part of its body, which tells how large it is."""

    def __init__(self, send: Send, is_wanted: bool, is_live: bool) -> None:
        self._send = send
        self._is_wanted = is_wanted
        self._is_live = is_live
        self._start: Message | None = None
        self._compressor: zlib._Compress | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self._is_compressible(message):
            MutableHeaders(scope=message).add_vary_header("Accept-Encoding")
            if self._is_wanted:
                self._start = message
                return
        elif message["type"] == "http.response.body":
            message = await self._body(message)
        await self._send(message)

    async def _body(self, message: Message) -> Message:
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._start is not None:
            start, self._start = self._start, None
            if more or len(body) >= _SMALLEST:
                self._compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP + _WINDOW_BITS, _MEMORY_LEVEL)
                headers = MutableHeaders(scope=start)
                headers["Content-Encoding"] = "gzip"
                del headers["Content-Length"]
            await self._send(start)
        if self._compressor is None:
            return message
        end = zlib.Z_SYNC_FLUSH if more else zlib.Z_FINISH
        return {**message, "body": self._compressor.compress(body) + self._compressor.flush(end)}

    def _is_compressible(self, start: Message) -> bool:
        headers = Headers(raw=start["headers"])
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        is_whole = start["status"] not in (204, 206, 304) and not {"content-encoding", "etag"} & set(headers)
        return is_whole and media_type in _COMPRESSED and (self._is_live or media_type != _STREAM)


def _accepts_gzip(header: str) -> bool:
    """Whether Accept-Encoding names gzip, or all encodings, and does not refuse it (`q=0`)."""
    accepted = {}
    for part in header.lower().split(","):
        name, _, parameter = part.partition(";")
        accepted[name.strip()] = _REFUSED.fullmatch(parameter.strip()) is None
    return accepted.get("gzip", accepted.get("*", False))
