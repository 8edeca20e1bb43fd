"""Reading a job's log from a cursor on, or back from one, a bounded share at a time, beside those who write it."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Self

from trainyard_protocol.sync import LogLine
from trainyard_protocol.views import LogEntry
from trainyard_server.storage.logs.codec import damaged_entry, decode, entry
from trainyard_server.storage.logs.filter import LogFilter
from trainyard_server.storage.logs.index import INDEX, LOST, Record, Stream, records

_SCAN = 20_000  # records that one read looks at, at most
_LOOK = 4 * 2**20  # bytes that one read looks at, at most, and the rest of a line
_BACK = 512  # records that are read at once on the way back
_TAIL_BLOCK = 64 * 1024
_OBJECT = b'"text": "{'  # in what `encode` makes of a line that begins with a brace


@dataclass(frozen=True, slots=True)
class Batch:
    """What one read found. The next read starts after `cursor`; `more`: it may find something at once. `damaged`: it
    met lines that cannot be read, and may be put back."""

    entries: tuple[LogEntry, ...]
    cursor: int
    more: bool
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """What one read backwards found: of the lines from `first` to `last` those that are wanted. Earlier ones are before
    `first`; there are none before 1."""

    entries: tuple[LogEntry, ...]
    first: int
    last: int


@dataclass(slots=True)
class Damage:
    """What one read met: lines that cannot be read, as (stream, number), and whether the index was damaged."""

    lines: list[tuple[Stream, int]] = field(default_factory=list)
    index: bool = False


def scan(
    directory: Path,
    total: int,
    after: int,
    wanted: LogFilter,
    max_lines: int,
    max_bytes: int,
    number: Callable[[Stream, int], int],
) -> tuple[Batch, Damage]:
    """The lines after a cursor, of the `total` that there are: no more than the limits, and no more looked at than
    takes a moment. `number` knows which line of its stream one is that cannot say so itself any more."""
    if after >= total:
        return Batch((), after, more=False), Damage()
    cursor = after
    with _Look(directory, wanted, max_lines, max_bytes, number) as look:
        for record in islice(records(directory / INDEX, after), min(total - after, _SCAN)):
            if not look.take(cursor + 1, record):
                break
            cursor += 1
    damaged = bool(look.damage.lines)
    return Batch(tuple(look.entries), cursor, cursor < total and not look.damage.index, damaged), look.damage


def scan_back(
    directory: Path,
    total: int,
    before: int | None,
    wanted: LogFilter,
    max_lines: int,
    max_bytes: int,
    number: Callable[[Stream, int], int],
) -> tuple[Page, Damage]:
    """The last lines before a cursor, or of all; bounded like `scan`. The oldest comes first."""
    last = total if before is None else max(0, min(before - 1, total))
    cursor = last + 1
    lowest = max(0, last - _SCAN)
    with _Look(directory, wanted, max_lines, max_bytes, number) as look:
        full = False
        while cursor - 1 > lowest and not full:
            begin = max(lowest, cursor - 1 - _BACK)
            block = list(islice(records(directory / INDEX, begin), cursor - 1 - begin))
            look.damage.index |= len(block) < cursor - 1 - begin
            full = look.damage.index
            while not full and block:
                full = not look.take(cursor - 1, block.pop())
                cursor -= not full
    return Page(tuple(reversed(look.entries)), cursor, last), look.damage


class _Look:
    """What is found of the lines that are wanted, one record after the other, within limits."""

    def __init__(
        self,
        directory: Path,
        wanted: LogFilter,
        max_lines: int,
        max_bytes: int,
        number: Callable[[Stream, int], int],
    ) -> None:
        self._directory = directory
        self._wanted = wanted
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._number = number
        self._size = 0
        self._looked_at = 0
        self._stack = ExitStack()
        self._files: dict[Stream, IO[bytes] | None] = {}
        self.entries: list[LogEntry] = []
        self.damage = Damage()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def take(self, cursor: int, record: Record) -> bool:
        """False when it is not to be looked at any more."""
        stream, offset, length, _ = record
        if stream is None:
            self.damage.index = True
            return False
        wanted = self._wanted
        if stream == LOST or not wanted.streams(stream.run, stream.task):
            return True
        if (
            len(self.entries) >= self._max_lines
            or self._looked_at > _LOOK
            or (self.entries and self._size + length > self._max_bytes)
        ):
            return False
        if stream not in self._files:
            self._files[stream] = _opened(self._stack, self._directory / stream.filename)
        raw = _read(self._files[stream], offset, length)
        self._looked_at += length
        if wanted.reads and len(raw) == length and raw.endswith(b"\n") and not wanted.maybe(raw):
            return True
        line = decode(raw)
        if line is None:
            which = self._number(stream, cursor)
            self.damage.lines.append((stream, which))
            shown = damaged_entry(cursor, stream, which)
        else:
            shown = entry(cursor, stream, line)
        if not wanted.reads or wanted.wants(shown, damaged=line is None):
            self.entries.append(shown)
            self._size += length
        return True


def tail(path: Path, size: int, lines: int) -> tuple[str, ...]:
    """The text of the last lines among a file's first `size` bytes, the oldest first; what can be read of them."""
    if lines <= 0:
        return ()
    data, start = b"", size
    try:
        with path.open("rb") as file:
            while start > 0 and data.count(b"\n") <= lines:
                block = min(start, _TAIL_BLOCK)
                start -= block
                file.seek(start)
                data = file.read(block) + data
    except OSError:
        return ()
    found = (decode(raw + b"\n") for raw in data.removesuffix(b"\n").split(b"\n")[-lines:])
    return tuple(line["text"] for line in found if line is not None)


def objects(path: Path, start: int, end: int) -> tuple[list[LogLine], int]:
    """Of the lines in these bytes of a file, or of the first of them, those that begin with a brace, as far as they can
    be read; and where the next ones lie. Of a file that is missing: none. Raises OSError."""
    found = []
    until = min(end, start + _LOOK)
    try:
        with path.open("rb") as file:
            file.seek(start)
            while start < until and (raw := file.readline(end - start)):
                start += len(raw)
                line = decode(raw) if _OBJECT in raw else None
                if line is not None:
                    found.append(LogLine.model_validate(line))
    except FileNotFoundError:
        return [], end
    return found, start if start >= until else end


def _opened(stack: ExitStack, path: Path) -> IO[bytes] | None:
    try:
        return stack.enter_context(path.open("rb"))
    except OSError:
        return None


def _read(file: IO[bytes] | None, offset: int, length: int) -> bytes:
    if file is None:
        return b""
    try:
        file.seek(offset)
        return file.read(length)
    except OSError:
        return b""
