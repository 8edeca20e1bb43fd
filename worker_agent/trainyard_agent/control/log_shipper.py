"""Ships every line of every replica to the server, in order, exactly once.

The server answers how many lines it has, and the agent continues from there. So the agent saves no shipping state: it
begins each log that was there before it with an empty chunk, to ask the server.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trainyard_agent.runtimes.base import LogSlice, Runtime
from trainyard_agent.server_client import ServerClient
from trainyard_protocol.errors import NotFound, TrainyardError
from trainyard_protocol.wire.logs import LogChunk, LogDigest, LogEnd, LogLine, LogPosition

MAX_LINES = 4000
MAX_BYTES = 1 << 19
MAX_CHUNKS = 8
"""Chunks of one log in one round: a replica that prints endlessly must not delay the others."""

SILENT_ROUNDS = 20
"""Rounds without a new line after which a log is silent."""

SILENT_EVERY = 3
"""Silent logs are looked at in one of this many rounds beside others, if the runtime reports their ends."""

_AT_ONCE = 8
_EMPTY = LogSlice((), complete=True)
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
    quiet_rounds: int = 0
    """Rounds in a row that found nothing new."""
    digest: LogDigest = field(default_factory=lambda: LogDigest(chain=None))
    """The digest of the lines that the server has, where they came from here; else the log is read again at its end."""


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
        self._round = 0
        self._unstarted: frozenset[Key] = frozenset()

    def begin(self, run_id: str, tasks: Iterable[str]) -> None:
        """Note a run that starts now: the server has none of its lines."""
        if self._runtime.traits.keeps_logs:
            self._progress |= {(run_id, task): _Progress(next=0) for task in tasks}

    async def ship(self, logs: Iterable[Key], woken: bool = False, unstarted: Iterable[Key] = ()) -> bool:
        """Send new lines of these logs, at most MAX_CHUNKS each, and the ends of the complete ones. True if there is
        more to send at once. `woken`: the runtime has told a change, after which no log is silent. `unstarted` are
        further logs, of programs that were never started: they are empty.

        Other logs are forgotten. Raises the server's first error, after every log was tried. Calls must not overlap.
        """
        self._unstarted = frozenset(unstarted)
        keys = {*logs, *self._unstarted}
        if keys != self._progress.keys():
            self._progress = {key: self._progress.get(key) or _Progress() for key in keys}
        if woken:
            for progress in self._progress.values():
                progress.quiet_rounds = 0
        self._round += 1
        skips_silent = self._round % SILENT_EVERY > 0 and not self.is_silent and self._runtime.traits.tells_changes
        pending = [
            key
            for key, progress in self._progress.items()
            if not progress.complete and not (skips_silent and progress.quiet_rounds >= SILENT_ROUNDS)
        ]
        if not pending:
            return False
        quiet = await asyncio.to_thread(self._quiet, pending)
        for key in pending:
            progress = self._progress[key]
            progress.quiet_rounds = progress.quiet_rounds + 1 if key in quiet else 0
        outcomes = await asyncio.gather(
            *(self._ship(key) for key in pending if key not in quiet), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return any(outcomes)

    @property
    def is_silent(self) -> bool:
        """Whether all logs are silent, or complete."""
        return all(progress.complete or progress.quiet_rounds >= SILENT_ROUNDS for progress in self._progress.values())

    def is_complete(self, key: Key) -> bool:
        """Whether the server has the complete log, or has refused it."""
        return key in self._progress and self._progress[key].complete

    def _quiet(self, keys: Iterable[Key]) -> set[Key]:
        """Those whose logs have nothing new: most of them, most of the time. They take no thread and no slot."""
        quiet = set()
        for key in keys:
            start = self._progress[key].next
            if start is None:
                continue
            with contextlib.suppress(Exception):  # `_ship` meets it again, and reports it
                log = self._read(key, start, 1, 1)
                if not log.lines and not log.complete:
                    quiet.add(key)
        return quiet

    async def _ship(self, key: Key) -> bool:
        """Send at most MAX_CHUNKS. True if there is more."""
        progress = self._progress[key]
        async with self._slots:
            try:
                for _ in range(MAX_CHUNKS):
                    if not await self._send_next(key, progress):
                        return False
            except NotFound:
                _log.warning("the server does not know run %s: the log of %s is not sent", *key)
                progress.complete = True
                return False
            except (TrainyardError, OSError):
                progress.next = None  # ask again: the chunk may have arrived without its answer, or the copy is gone
                raise
            return True

    async def _send_next(self, key: Key, progress: _Progress) -> bool:
        """Send one chunk. True if there may be more that is better sent at once: lines of a small chunk have just been
        written, and the next ones are sent together."""
        if progress.next is None:
            question = LogChunk(start=0, resume=not self._runtime.traits.keeps_logs)
            receipt = await self._control_plane.send_log(*key, question)
            progress.next, progress.complete = receipt.next, receipt.complete
            if question.resume:
                position = receipt.position or LogPosition(next=receipt.next)
                progress.digest = LogDigest(position.next, position.chain)
                await asyncio.to_thread(self._runtime.resume_log, *key, position)
            return not receipt.complete
        start = progress.next
        log = await asyncio.to_thread(self._read, key, start, *self._limits)
        self._watch(key, start, log.lines)
        if not log.lines and not log.complete:
            return False
        digest = progress.digest.copy()
        if digest.count == start:
            digest.extend((line.stream, line.text) for line in log.lines)
        end = None
        if log.complete:
            is_whole = digest.count == start + len(log.lines) or not self._runtime.traits.keeps_logs
            end = _end(digest, log) if is_whole else await asyncio.to_thread(self._log_end, key, log)
        chunk = LogChunk.of(start, log.lines, end=end, gap=log.gap)
        receipt = await self._control_plane.send_log(*key, chunk)
        progress.next, progress.complete, progress.digest = receipt.next, receipt.complete, digest
        if not (self._runtime.traits.keeps_logs or receipt.next == digest.count or receipt.complete):
            progress.next = None  # ask where to go on: these lines cannot be read again by their numbers
        if end is not None and not receipt.complete and receipt.next == start:
            _log.error("the server does not accept the end of the log of run %s, %s", *key)
        if receipt.complete or receipt.next == start:
            return False
        return receipt.next != start + len(log.lines) or not self._is_small(log.lines)

    def _read(self, key: Key, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        if key in self._unstarted:
            return _EMPTY
        return self._runtime.read_log(*key, start, max_lines, max_bytes)

    def _is_small(self, lines: Sequence[LogLine]) -> bool:
        max_lines, max_bytes = self._limits
        return 4 * len(lines) < max_lines and 4 * sum(len(line.text) for line in lines) < max_bytes

    def _log_end(self, key: Key, last: LogSlice) -> LogEnd:
        digest = LogDigest(chain=None)
        number = 0
        while lines := self._runtime.read_log(*key, number, *self._limits).lines:
            digest.extend((line.stream, line.text) for line in lines)
            number += len(lines)
        return _end(digest, last)


def _end(digest: LogDigest, last: LogSlice) -> LogEnd:
    return LogEnd(
        count=digest.count, sha256=digest.hexdigest(), cut=last.cut, chain=digest.chain or "", missing=last.missing
    )
