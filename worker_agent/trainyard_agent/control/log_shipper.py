"""Ships every line of every replica to the server, in order, exactly once.

The server answers how many lines it has, and the agent continues from there. So the agent saves no shipping state: a
new agent begins each log with an empty chunk, to ask the server.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainyard_agent.runtimes.base import Runtime
from trainyard_agent.server_client import ServerClient
from trainyard_protocol.errors import NotFound, TrainyardError
from trainyard_protocol.sync import LogChunk, LogEnd, LogLine, digest

MAX_LINES = 1000
MAX_BYTES = 1 << 19
MAX_CHUNKS = 8
"""Of one log in one round: a replica that prints endlessly must not delay the others."""

_AT_ONCE = 8
_log = logging.getLogger(__name__)

Key = tuple[str, str]
"""A run's id and a task."""

Watch = Callable[[Key, int, Sequence[LogLine]], None]
"""Called with lines `start`, `start + 1`, ... of a log."""


@dataclass(slots=True)
class _Progress:
    next: int | None = None
    """The number of lines that the server has; None before it was asked."""
    complete: bool = False


class LogShipper:
    """Ships the logs of one runtime to one server."""

    def __init__(
        self,
        control_plane: ServerClient,
        runtime: Runtime,
        max_lines: int = MAX_LINES,
        max_bytes: int = MAX_BYTES,
        watch: Watch = lambda _key, _start, _lines: None,
    ) -> None:
        """`watch` is called with lines that were read, before they are sent."""
        self._control_plane = control_plane
        self._runtime = runtime
        self._limits = (max_lines, max_bytes)
        self._watch = watch
        self._progress: dict[Key, _Progress] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def ship(self, logs: Iterable[Key]) -> bool:
        """Send new lines of these logs, at most MAX_CHUNKS each, and the ends of the complete ones. True if there is
        more to send at once.

        Other logs are forgotten. Raises the server's first error, after every log was tried. Calls must not overlap.
        """
        keys = set(logs)
        self._progress = {key: p for key, p in self._progress.items() if key in keys}
        pending = [key for key in keys if not self._of(key).complete]
        outcomes = await asyncio.gather(*(self._ship(key) for key in pending), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return any(outcomes)

    def is_complete(self, key: Key) -> bool:
        """Whether the server has the complete log, or has refused it."""
        return key in self._progress and self._progress[key].complete

    async def _ship(self, key: Key) -> bool:
        """Send at most MAX_CHUNKS. True if there is more."""
        progress = self._of(key)
        async with self._slots:
            try:
                for _ in range(MAX_CHUNKS):
                    if not await self._send_next(key, progress):
                        return False
            except NotFound:
                _log.warning("the server does not know run %s: the log of %s is not sent", *key)
                progress.complete = True
                return False
            except TrainyardError:
                progress.next = None  # ask again: the chunk may have arrived without its answer
                raise
            return True

    async def _send_next(self, key: Key, progress: _Progress) -> bool:
        """Send one chunk. True if the server accepted lines, so that there may be more to send."""
        if progress.next is None:
            receipt = await self._control_plane.send_log(*key, LogChunk(start=0, lines=()))
            progress.next, progress.complete = receipt.next, receipt.complete
            return not receipt.complete
        start = progress.next
        log = await asyncio.to_thread(self._runtime.read_log, *key, start, *self._limits)
        self._watch(key, start, log.lines)
        if not log.lines and not log.complete:
            return False
        end = await asyncio.to_thread(self._log_end, key, log.cut) if log.complete else None
        receipt = await self._control_plane.send_log(*key, LogChunk(start=start, lines=log.lines, end=end))
        progress.next, progress.complete = receipt.next, receipt.complete
        if end is not None and not receipt.complete and receipt.next == start:
            _log.error("the server does not accept the end of the log of run %s, %s", *key)
        return not receipt.complete and receipt.next != start

    def _log_end(self, key: Key, cut: bool) -> LogEnd:
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
