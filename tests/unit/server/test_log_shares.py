"""Encoded batches of a log that many readers share."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from trainyard_protocol.sync import LogLine
from trainyard_server.services.logs.batches import LogShares, Share, Wanted
from trainyard_server.services.logs.executors import LogThreads
from trainyard_server.services.logs.formats import Form
from trainyard_server.storage.logs.filter import EVERYTHING
from trainyard_server.storage.logs.store import LogStore, Stream

T = TypeVar("T")
WANTED = Wanted("p", "job", 0, None, EVERYTHING, next(iter(Form)))


class FailsAtOnce(LogThreads):
    """Its readings have failed before anybody can wait for them, as long as the disk is broken."""

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


def in_time(ask: Callable[[], T]) -> T:
    """What it answers; fails where it never does, which would hold up an event loop for good."""
    answers: list[T | BaseException] = []

    def asking() -> None:
        try:
            answers.append(ask())
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=asking, daemon=True)
    thread.start()
    thread.join(20)
    assert answers, "nobody has answered: a lock is waited for by who holds it"
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]


def test_reading_that_fails_at_once_holds_up_nobody_and_is_tried_again(logs: LogStore) -> None:
    threads = FailsAtOnce()
    shares = LogShares(logs, threads)
    with pytest.raises(OSError, match="Input/output"):
        in_time(lambda: asyncio.run(shares.next(WANTED, 0.0, behind=True)))
    assert shares._under_way == {}
    threads.broken = False
    share: Share = in_time(lambda: asyncio.run(shares.next(WANTED, 0.0, behind=True)))
    assert (share.cursor, b"one" in share.data) == (1, True)
    threads.close()
