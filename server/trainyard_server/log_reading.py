"""Reading a job's log from a cursor on, a bounded share at a time, beside those who write it."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

from trainyard_protocol.sync import LogLine
from trainyard_protocol.views import LogEntry
from trainyard_server.log_filter import LogFilter
from trainyard_server.log_lines import damaged_entry, decode, entry
from trainyard_server.log_records import INDEX, LOST, Stream, records

_SCAN = 20_000  # records that one read looks at, at most
_LOOK = 4 * 2**20  # bytes that one read looks at, at most, and the rest of a line
_TAIL_BLOCK = 64 * 1024
_OBJECT = b'"text": "{'  # in what `encode` makes of a line that begins with a brace


@dataclass(frozen=True, slots=True)
class Batch:
    """What one read found. The next read starts after `cursor`; `more`: it may find something at once."""

    entries: tuple[LogEntry, ...]
    cursor: int
    more: bool


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
    damage = Damage()
    if after >= total:
        return Batch((), after, more=False), damage
    entries: list[LogEntry] = []
    cursor, size, looked_at = after, 0, 0
    with ExitStack() as stack:
        files: dict[Stream, IO[bytes] | None] = {}
        for stream, offset, length, _ in islice(records(directory / INDEX, after), min(total - after, _SCAN)):
            if stream is None:
                damage.index = True
                return Batch(tuple(entries), cursor, more=False), damage
            if stream == LOST or (wanted.task and stream.task != wanted.task):
                cursor += 1
                continue
            if len(entries) >= max_lines or looked_at > _LOOK or (entries and size + length > max_bytes):
                break
            if stream not in files:
                files[stream] = _opened(stack, directory / stream.filename)
            raw = _read(files[stream], offset, length)
            cursor += 1
            looked_at += length
            if wanted.reads and len(raw) == length and raw.endswith(b"\n") and not wanted.maybe(raw):
                continue
            line = decode(raw)
            if line is None:
                which = number(stream, cursor)
                damage.lines.append((stream, which))
                shown = damaged_entry(cursor, stream, which)
            else:
                shown = entry(cursor, stream, line)
            if not wanted.reads or wanted.wants(shown, damaged=line is None):
                entries.append(shown)
                size += length
    return Batch(tuple(entries), cursor, more=cursor < total), damage


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
