"""Batches of a log as they are sent: read and encoded once for all who want the same ones next."""

import asyncio
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import NamedTuple

from trainyard_server.services.logs.executors import LogThreads
from trainyard_server.services.logs.formats import Form, written
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter
from trainyard_server.storage.logs.store import LogStore

_KEPT = 32 * 2**20  # bytes, of all jobs together
_SMALL = 512  # bytes that a share takes beside its data
# A read ends at a multiple of so many lines: readers that are behind by this and that soon want the same.
_STEP, _FILTERED_STEP = 500, 5000


class Wanted(NamedTuple):  # many of them are made and compared
    """What a reader wants next: the lines after a cursor, none behind `until`, as a filter leaves them."""

    project: str
    job_id: str
    after: int
    until: int | None
    filter: LogFilter
    form: Form


@dataclass(frozen=True, slots=True)
class Share:
    """`cursor`: the next ones begin behind it. `more`: there were more already. `as_of`: the moment (time.monotonic)
    that it does not know of anything after."""

    data: bytes
    cursor: int
    more: bool
    as_of: float


class LogShares:
    """Safe to use from any thread and any event loop.

    What a log has up to a cursor never changes, so a batch that moved on may serve everybody for ever; the
    last ones that somebody wanted are kept, within a bound. Damaged lines may be put back: those are not kept.
    """

    def __init__(self, logs: LogStore, threads: LogThreads, kept: int = _KEPT) -> None:
        self._logs = logs
        self._threads = threads
        self._bound = kept
        self._lock = Lock()
        self._size = 0
        self._kept: OrderedDict[Wanted, Share] = OrderedDict()
        self._under_way: dict[Wanted, Future[Share]] = {}

    async def alone(self, wanted: Wanted) -> Share:
        """What follows, as the disk has it now. Raises OSError as LogStore.read does."""
        return (await self._threads.run(partial(self._read, wanted)))[0]

    async def next(self, wanted: Wanted, news_at: float, *, behind: bool) -> Share:
        """What follows, for all who want it; one without news is not older than `news_at`. Raises OSError."""
        step = _STEP if wanted.filter == EVERYTHING else _FILTERED_STEP
        end = (wanted.after // step + 1) * step
        if wanted.until is None or end < wanted.until:
            wanted = wanted._replace(until=end)
        while True:
            with self._lock:
                share = self._kept.get(wanted)
                if share is not None and (share.cursor > wanted.after or share.as_of >= news_at):
                    self._kept.move_to_end(wanted)
                    return share
                reading = self._under_way.get(wanted)
                is_first = reading is None
                if reading is None:
                    reading = self._threads.submit(partial(self._shared, wanted, end), behind=behind)
                    self._under_way[wanted] = reading
            if is_first:
                # Not in the lock, which it takes: where the reading is over already, it is called right here.
                reading.add_done_callback(partial(self._read_through, wanted))
            # Somebody else may wait for it as well: that one of them goes away does not end it.
            share = await asyncio.shield(asyncio.wrap_future(reading))
            if share.cursor > wanted.after or share.as_of >= news_at:
                return share

    def _shared(self, wanted: Wanted, end: int) -> Share:
        share, damaged = self._read(wanted)
        share = replace(share, more=share.more or share.cursor == end)
        if not damaged:
            self._keep(wanted, share)
        return share

    def _read(self, wanted: Wanted) -> tuple[Share, bool]:
        """And whether it met damage."""
        as_of = time.monotonic()
        batch = self._logs.read(
            wanted.project,
            wanted.job_id,
            wanted.after,
            wanted.filter,
            wanted.until,
            max_lines=_STEP,
        )
        data = written(wanted.form, batch.entries, batch.cursor)
        return Share(data, batch.cursor, batch.more, as_of), batch.damaged

    def _read_through(self, wanted: Wanted, reading: "Future[Share]") -> None:
        with self._lock:
            if self._under_way.get(wanted) is reading:
                del self._under_way[wanted]

    def _keep(self, wanted: Wanted, share: Share) -> None:
        with self._lock:
            self._drop(wanted)
            self._kept[wanted] = share
            self._size += len(share.data) + _SMALL
            while self._size > self._bound and self._kept:
                self._drop(next(iter(self._kept)))

    def _drop(self, wanted: Wanted) -> None:
        share = self._kept.pop(wanted, None)
        if share is not None:
            self._size -= len(share.data) + _SMALL
