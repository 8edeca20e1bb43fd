"""Followers of one job, in a process of their own: plain connections that read server-sent events, and check that
each line comes exactly once and in order.

    python -m benchmarks.followers.readers URL COUNT AFTER LAST

with the token on stdin. They begin behind the cursor AFTER and end with the line whose text is LAST. Prints one JSON
object.
"""

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from benchmarks.followers.yard import CHATTY, PROJECT

_PATIENCE_S = 120


@dataclass
class Read:
    """What one follower has got. `wrong`: what was not as it has to be."""

    lines: int = 0
    events: int = 0
    cursor: int = 0
    wrong: str = ""
    lags_s: list[float] = field(default_factory=list)


@lru_cache(maxsize=256)
def _parsed(data: bytes) -> tuple[list[int], list[str]]:
    """The cursors and the texts of an event. The same bytes reach many followers: they are parsed once."""
    lines = json.loads(data)
    return [line[0] for line in lines], [line[7] for line in lines]


@lru_cache(maxsize=256)
def _printed_at(text: str) -> float | None:
    _, at, moment = text.rpartition("@")
    return float(moment) if at else None


async def read(url: str, token: str, after: int, last: str) -> Read:
    """Follows the job until its line `last`."""
    found = Read(cursor=after)
    async for kind, ident, data in _events(url, token, after):
        now = time.monotonic()
        if kind != "lines":
            continue
        cursors, texts = _parsed(data)
        found.events += 1
        expected = list(range(found.cursor + 1, found.cursor + 1 + len(cursors)))
        if cursors != expected:
            found.wrong = f"after {found.cursor} came {cursors[:1]} to {cursors[-1:]} ({len(cursors)} lines)"
            return found
        if cursors:
            found.cursor = cursors[-1]
        if ident != str(found.cursor):
            found.wrong = f"the id {ident} does not belong to the cursor {found.cursor}"
            return found
        found.lines += len(cursors)
        moment = _printed_at(texts[0]) if texts else None  # the oldest: it waited longest
        if moment is not None:
            found.lags_s.append(now - moment)
        if last in texts:
            return found
    found.wrong = "the stream ended before its last line"
    return found


async def _events(url: str, token: str, after: int) -> AsyncIterator[tuple[str, str, bytes]]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
    path = f"/trainyard/v1/projects/{PROJECT}/jobs/{CHATTY}/logs?follow=true&batch=true&after={after}"
    head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise ConnectionError(f"The server says {status!r}.")
        while (await reader.readline()).strip():
            pass
        rest = b""
        async for chunk in _chunks(reader):
            *events, rest = (rest + chunk).split(b"\n\n")
            for event in events:
                fields = dict(
                    line.split(b": ", 1) for line in event.split(b"\n") if not line.startswith(b":")
                )
                if fields:
                    ident = fields.get(b"id", b"").decode()
                    yield fields.get(b"event", b"").decode(), ident, fields.get(b"data", b"")
    finally:
        writer.close()


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body of an answer in `Transfer-Encoding: chunked`."""
    while True:
        async with asyncio.timeout(_PATIENCE_S):
            size = int((await reader.readline()).strip() or b"0", 16)
            if not size:
                return
            data = await reader.readexactly(size + 2)
        yield data[:-2]


async def follow(url: str, token: str, count: int, after: int, last: str) -> dict[str, Any]:
    """What all of them got, in figures."""
    reads = await asyncio.gather(*(read(url, token, after, last) for _ in range(count)))
    lags = sorted(lag for one in reads for lag in one.lags_s)
    return {
        "followers": count,
        "lines": sorted({one.lines for one in reads}),
        "events": statistics.median(one.events for one in reads),
        "wrong": sorted({one.wrong for one in reads} - {""}),
        "lag_median_s": statistics.median(lags) if lags else None,
        "lag_p99_s": lags[len(lags) * 99 // 100] if lags else None,
        "lag_most_s": lags[-1] if lags else None,
    }


def main() -> None:
    url, count, after, last = sys.argv[1:]
    os.nice(19)  # pages are on other machines: they take no core from the server
    token = sys.stdin.readline().strip()
    print(json.dumps(asyncio.run(follow(url, token, int(count), int(after), last))))


if __name__ == "__main__":
    main()
