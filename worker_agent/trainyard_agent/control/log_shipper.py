"""Sends every line of every replica to the server, in order, exactly once.

The server says how many lines it has; the agent goes on from there, whatever it believed before. So nothing
about shipping is kept on this side: a new agent begins each log by asking, with an empty chunk.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.server_client import ControlPlane
from trainyard_protocol.errors import NotFound, TrainyardError
from trainyard_protocol.sync import LogChunk, LogEnd, LogLine, digest

MAX_LINES = 1000
MAX_BYTES = 1 << 19
MAX_CHUNKS = 8
"""Of one log in one round: a replica that prints without end must not hold up the others."""

_AT_ONCE = 8
_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A run's id and a task."""

Watch = Callable[[Key, int, Sequence[LogLine]], None]
"""Told of lines `start`, `start + 1`, ... of a log."""


@dataclass(slots=True)
class _Progress:
    next: int | None = None
    """How many lines the server has; None before it was asked."""
    over: bool = False


class LogShipper:
    def __init__(
        self,
        control_plane: ControlPlane,
        runtime: Runtime,
        max_lines: int = MAX_LINES,
        max_bytes: int = MAX_BYTES,
        watch: Watch = lambda _key, _start, _lines: None,
    ) -> None:
        """`watch` is given what is read, before it is sent."""
        self._control_plane = control_plane
        self._runtime = runtime
        self._limits = (max_lines, max_bytes)
        self._watch = watch
        self._progress: dict[Key, _Progress] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def ship(self, logs: Iterable[Key]) -> bool:
        """Send a round's share of what there is of these logs, and the last word on those that are complete.
        True if there is more to send at once.

        A log that is not among them is forgotten; one that is over costs nothing. Raises the first error
        of the server; every other log was still tried. Calls must not overlap.
        """
        wanted = set(logs)
        self._progress = {key: p for key, p in self._progress.items() if key in wanted}
        pending = [key for key in wanted if not self._of(key).over]
        outcomes = await asyncio.gather(*(self._ship(key) for key in pending), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return any(outcomes)

    def is_over(self, key: Key) -> bool:
        """Whether the server has all of this log, or does not want it."""
        return key in self._progress and self._progress[key].over

    async def _ship(self, key: Key) -> bool:
        """True if there is more than one round's share."""
        progress = self._of(key)
        async with self._slots:
            try:
                for _ in range(MAX_CHUNKS):
                    if not await self._send_next(key, progress):
                        return False
            except NotFound:
                _log.warning("run %s is not this server's: the log of %s is not sent", *key)
                progress.over = True
                return False
            except TrainyardError:
                progress.next = None  # ask again: the chunk may have arrived and the answer not
                raise
            return True

    async def _send_next(self, key: Key, progress: _Progress) -> bool:
        """Send one chunk. True if it moved things on, so that there may be more to send at once."""
        if progress.next is None:
            receipt = await self._control_plane.send_log(*key, LogChunk(start=0, lines=()))
            progress.next, progress.over = receipt.next, receipt.complete
            return not receipt.complete
        start = progress.next
        found = await asyncio.to_thread(self._runtime.read_log, *key, start, *self._limits)
        self._watch(key, start, found.lines)
        if not found.lines and not found.complete:
            return False
        end = await asyncio.to_thread(self._last_word, key, found.cut) if found.complete else None
        receipt = await self._control_plane.send_log(*key, LogChunk(start=start, lines=found.lines, end=end))
        progress.next, progress.over = receipt.next, receipt.complete
        if end is not None and not receipt.complete and receipt.next == start:
            _log.error("the server does not accept the end of the log of run %s, %s", *key)
        return not receipt.complete and receipt.next != start

    def _last_word(self, key: Key, cut: bool) -> LogEnd:
        count = 0

        def counted() -> Iterator[LogLine]:
            nonlocal count
            for line in self._all(key):
                count += 1
                yield line

        sha256 = digest(counted())
        return LogEnd(count=count, sha256=sha256, cut=cut)

    def _all(self, key: Key) -> Iterator[LogLine]:
        number = 0
        while lines := self._runtime.read_log(*key, number, *self._limits).lines:
            yield from lines
            number += len(lines)

    def _of(self, key: Key) -> _Progress:
        return self._progress.setdefault(key, _Progress())
