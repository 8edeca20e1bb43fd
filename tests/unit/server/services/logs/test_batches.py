"""Encoded batches of a log that many readers batch."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from trainyard_protocol.wire.logs import LogLine
from trainyard_server.services.logs.batches import LogBatch, LogBatches, LogExecutors, LogRequest
from trainyard_server.services.logs.formats import LogFormat
from trainyard_server.storage.logs.filter import EVERYTHING
from trainyard_server.storage.logs.store import LogStore, Stream

T = TypeVar("T")
REQUEST = LogRequest("p", "job", 0, None, EVERYTHING, next(iter(LogFormat)))


class FailsAtOnce(LogExecutors):
    """Its reads have failed before they can be awaited, as long as `broken` is set."""

    broken = True

    def submit(self, work: Callable[[], T], *, behind: bool = True) -> "Future[T]":
        if not self.broken:
            return super().submit(work, behind=behind)
        failed: Future[T] = Future()
        failed.set_exception(OSError(5, "Input/output error"))
        return failed


@pytest.fixture
def logs(tmp_path: Path) -> LogStore:
    store = LogStore(tmp_path / "logs", durable=False)
    line = LogLine(time="2026-11-21T12:00:00Z", stream="stdout", text="one")
    store.append("p", "job", Stream(1, "master-replica-0"), 0, [line])
    return store


def in_time(call: Callable[[], T]) -> T:
    """The result of a call; fails if it does not return, which would block an event loop for ever."""
    results: list[T | BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except OSError as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert results, "no result: a thread waits for a lock that it holds"
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def test_read_that_fails_at_once_blocks_no_reader_and_is_tried_again(logs: LogStore) -> None:
    threads = FailsAtOnce()
    batches = LogBatches(logs, threads)
    with pytest.raises(OSError, match="Input/output"):
        in_time(lambda: asyncio.run(batches.next(REQUEST, 0.0, behind=True)))
    assert batches._under_way == {}
    threads.broken = False
    batch: LogBatch = in_time(lambda: asyncio.run(batches.next(REQUEST, 0.0, behind=True)))
    assert (batch.cursor, b"one" in batch.data) == (1, True)
    threads.close()
