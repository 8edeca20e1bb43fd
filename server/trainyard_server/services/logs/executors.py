"""Threads of their own for those who read logs: a hundred readers never stand before a tick, a sync or a call."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

_LIVE = 2
_BEHIND = 2


class LogThreads:
    """Two queues, each served in its order: one for readers that are up with their log, one for all that have much
    to read, so that neither waits for the other. Few threads: they share one interpreter with the scheduler."""

    def __init__(self) -> None:
        self._live = ThreadPoolExecutor(_LIVE, "live-logs")
        self._behind = ThreadPoolExecutor(_BEHIND, "logs")

    def submit(self, work: Callable[[], _T], *, behind: bool = True) -> "Future[_T]":
        """Raises RuntimeError once everything is closed."""
        return (self._behind if behind else self._live).submit(work)

    async def run(self, work: Callable[[], _T], *, behind: bool = True) -> _T:
        return await asyncio.wrap_future(self.submit(work, behind=behind))

    def close(self) -> None:
        """What is under way ends; what waits does not begin."""
        for pool in (self._live, self._behind):
            pool.shutdown(wait=False, cancel_futures=True)
