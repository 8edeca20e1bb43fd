"""Encoded batches of a log, read once for all readers that request the same lines, in threads of their own."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import NamedTuple, TypeVar

from trainyard_server.services.logs.formats import LogFormat, as_batch, as_events
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter
from trainyard_server.storage.logs.store import LogStore

_T = TypeVar("_T")

_LIVE_THREADS = _BEHIND_THREADS = 2
_CACHE_BYTES = 32 * 2**20  # of all jobs together
_OVERHEAD = 512  # bytes of a cached batch beside its data
# Reads end at multiples of these numbers of lines: readers that are behind soon request the same batches.
_STEP, _FILTERED_STEP = 500, 5000


class LogExecutors:
    """Two pools: one for readers at the end of their log, one for those that are behind, so that neither waits for the
    other. They have few threads, which share one interpreter with the scheduler."""

    def __init__(self) -> None:
        self._live = ThreadPoolExecutor(_LIVE_THREADS, "live-logs")
        self._behind = ThreadPoolExecutor(_BEHIND_THREADS, "logs")

    def submit(self, work: Callable[[], _T], *, behind: bool = True) -> "Future[_T]":
        """Raises RuntimeError after `close`."""
        return (self._behind if behind else self._live).submit(work)

    async def run(self, work: Callable[[], _T], *, behind: bool = True) -> _T:
        return await asyncio.wrap_future(self.submit(work, behind=behind))

    def close(self) -> None:
        """Cancel queued work; running work ends by itself."""
        for pool in (self._live, self._behind):
            pool.shutdown(wait=False, cancel_futures=True)


class LogRequest(NamedTuple):  # many of them are made and compared
    """The lines after a cursor and up to `until` that pass a filter, in a format."""

    project: str
    job_id: str
    after: int
    until: int | None
    filter: LogFilter
    form: LogFormat


@dataclass(frozen=True, slots=True)
class LogBatch:
    """`cursor`: the next batch begins behind it. `more`: there were more lines. `as_of`: the time (time.monotonic) of
    the read."""

    data: bytes
    cursor: int
    more: bool
    as_of: float


class LogBatches:
    """Safe to use from any thread and any event loop.

    The lines up to a cursor never change, so a batch with lines serves all readers; the last ones are cached, within
    `cache_bytes`.
    """

    def __init__(self, logs: LogStore, threads: LogExecutors, cache_bytes: int = _CACHE_BYTES) -> None:
        self._logs = logs
        self._threads = threads
        self._cache_bytes = cache_bytes
        self._lock = Lock()
        self._size = 0
        self._cached: OrderedDict[LogRequest, LogBatch] = OrderedDict()
        self._under_way: dict[LogRequest, Future[LogBatch]] = {}

    async def alone(self, request: LogRequest) -> LogBatch:
        """The next batch, for one reader. Raises OSError."""
        return await self._threads.run(partial(self._read, request))

    async def next(self, request: LogRequest, changed_at: float, *, behind: bool) -> LogBatch:
        """The next batch, shared; one without lines was read at `changed_at` or later. Raises OSError."""
        step = _STEP if request.filter == EVERYTHING else _FILTERED_STEP
        end = (request.after // step + 1) * step
        if request.until is None or end < request.until:
            request = request._replace(until=end)
        while True:
            with self._lock:
                batch = self._cached.get(request)
                if batch is not None and (batch.cursor > request.after or batch.as_of >= changed_at):
                    self._cached.move_to_end(request)
                    return batch
                reading = self._under_way.get(request)
                is_first = reading is None
                if reading is None:
                    reading = self._threads.submit(partial(self._read_shared, request, end), behind=behind)
                    self._under_way[request] = reading
            if is_first:
                # Outside the lock, which the callback needs: it is called at once if the read has ended.
                reading.add_done_callback(partial(self._ended, request))
            # Shielded: other readers may wait for the same read when this one is cancelled.
            batch = await asyncio.shield(asyncio.wrap_future(reading))
            if batch.cursor > request.after or batch.as_of >= changed_at:
                return batch

    def _read(self, request: LogRequest) -> LogBatch:
        as_of = time.monotonic()
        project, job_id, after, until, log_filter, _ = request
        result = self._logs.read(project, job_id, after, log_filter, until, _STEP)
        is_batch = request.form is LogFormat.BATCH
        data = as_batch(result.arrays, result.last) if is_batch else as_events(result.entries)
        return LogBatch(data, result.last, result.more, as_of)

    def _read_shared(self, request: LogRequest, end: int) -> LogBatch:
        batch = self._read(request)
        batch = replace(batch, more=batch.more or batch.cursor == end)
        with self._lock:
            self._drop(request)
            self._cached[request] = batch
            self._size += len(batch.data) + _OVERHEAD
            while self._size > self._cache_bytes and self._cached:
                self._drop(next(iter(self._cached)))
        return batch

    def _ended(self, request: LogRequest, reading: "Future[LogBatch]") -> None:
        with self._lock:
            if self._under_way.get(request) is reading:
                del self._under_way[request]

    def _drop(self, request: LogRequest) -> None:
        batch = self._cached.pop(request, None)
        if batch is not None:
            self._size -= len(batch.data) + _OVERHEAD
