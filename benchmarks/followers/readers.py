"""Followers of one job in a separate process, which read server-sent events and check that each line arrives exactly
once and in order.

    python -m benchmarks.followers.readers URL COUNT AFTER LAST

with the token on stdin. They start after the cursor AFTER and end at the line with the text LAST. Prints one JSON
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

from benchmarks.followers.local_server import CHATTY, PROJECT

_PATIENCE_S = 120


@dataclass
class FollowerResult:
    """The lines that one follower received; `wrong` describes the first violation."""

    lines: int = 0
    events: int = 0
    cursor: int = 0
    wrong: str = ""
    lags_s: list[float] = field(default_factory=list)


@lru_cache(maxsize=256)
def _parsed(data: bytes) -> tuple[list[int], list[str]]:
    """The cursors and texts of an event; cached, as many followers receive the same bytes."""
    lines = json.loads(data)
    return [line[0] for line in lines], [line[7] for line in lines]


@lru_cache(maxsize=256)
def _printed_at(text: str) -> float | None:
    _, separator, time_s = text.rpartition("@")
    return float(time_s) if separator else None


async def read(url: str, token: str, after: int, last: str) -> FollowerResult:
    """Follow the job until the line `last`."""
    result = FollowerResult(cursor=after)
    async for kind, ident, data in _events(url, token, after):
        now = time.monotonic()
        if kind != "lines":
            continue
        cursors, texts = _parsed(data)
        result.events += 1
        expected = list(range(result.cursor + 1, result.cursor + 1 + len(cursors)))
        if cursors != expected:
            result.wrong = (
                f"after {result.cursor} came {cursors[:1]} to {cursors[-1:]} ({len(cursors)} lines)"
            )
            return result
        if cursors:
            result.cursor = cursors[-1]
        if ident != str(result.cursor):
            result.wrong = f"the id {ident} does not belong to the cursor {result.cursor}"
            return result
        result.lines += len(cursors)
        printed_at = _printed_at(texts[0]) if texts else None  # the oldest line has the largest lag
        if printed_at is not None:
            result.lags_s.append(now - printed_at)
        if last in texts:
            return result
    result.wrong = "the stream ended before its last line"
    return result


async def _events(url: str, token: str, after: int) -> AsyncIterator[tuple[str, str, bytes]]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=2**24)
    path = f"/trainyard/v1/projects/{PROJECT}/jobs/{CHATTY}/logs?follow=true&batch=true&after={after}"
    head = f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    try:
        status = await reader.readline()
        if b" 200 " not in status:
            raise ConnectionError(f"The server responded {status!r}.")
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
    """The body of a response in `Transfer-Encoding: chunked`."""
    while True:
        async with asyncio.timeout(_PATIENCE_S):
            size = int((await reader.readline()).strip() or b"0", 16)
            if not size:
                return
            data = await reader.readexactly(size + 2)
        yield data[:-2]


async def follow(url: str, token: str, count: int, after: int, last: str) -> dict[str, Any]:
    """Run all followers; returns summary statistics."""
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
    os.nice(19)  # in reality, pages run on other machines
    token = sys.stdin.readline().strip()
    print(json.dumps(asyncio.run(follow(url, token, int(count), int(after), last))))


if __name__ == "__main__":
    main()
