"""The index of a segment: an entry of fixed size for each record, in the order of arrival, with a CRC-32.

An entry has the cursors of its record's lines, and what filters ask for, so that a search by replica, severity or time
reads no record that it does not return. Everything here is derived from the segment.
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from trainyard_protocol.answers.log_views import SERVICE_TASK
from trainyard_protocol.job.cluster import TASK_TYPES, Task
from trainyard_protocol.lines.severity import SEVERITIES
from trainyard_server.storage.files import size_of
from trainyard_server.storage.logs.filter import LogFilter
from trainyard_server.storage.logs.records import NO_TIME, Record, instant, microseconds
from trainyard_server.storage.streams import SERVICE, Stream

_KEY = struct.Struct("<IHB")  # run, index of the task, kind of the task
# Time, offset, length, cursor, number, count, key, severity, whether a line may report progress.
_FIELDS = struct.Struct("<qQIIII7sBB")
_CRC = struct.Struct("<I")
_SEVERITY_AT, _REPORT_AT = _FIELDS.size - 2, _FIELDS.size - 1
_KEY_AT = slice(_SEVERITY_AT - _KEY.size, _SEVERITY_AT)
_KINDS = (SERVICE_TASK, *TASK_TYPES)

SIZE = _FIELDS.size + _CRC.size
"""Bytes of an entry."""

LOST = b"\xff" * _KEY.size
"""Key of an entry whose lines are unknown: index and segment were both damaged there. It keeps the cursors."""


class IndexDamaged(OSError):
    """The index does not have the entries that it should have. It can be rebuilt."""


class IndexEntry(NamedTuple):
    """`time`: microseconds since 1970. `offset`, `length`: of the record in the segment. `cursor`, `number`: of its
    first line. `lines`: their number. `key`: of the stream. `severity`: number in SEVERITIES of the most severe one.
    `may_report`: whether any of the texts may report progress."""

    time: int
    offset: int
    length: int
    cursor: int
    number: int
    lines: int
    key: bytes
    severity: int
    may_report: int

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def last(self) -> int:
        """The cursor of its last line."""
        return self.cursor + self.lines - 1


def index_entry(record: Record, offset: int, length: int, reports: bool) -> IndexEntry:
    """The index entry of a record that lies at `offset`. `reports`: whether any of its lines may report progress."""
    time, cursor, number, count = microseconds(record.time), record.cursor, record.number, len(record.texts)
    key = key_of(Stream(record.run, record.task))
    return IndexEntry(time, offset, length, cursor, number, count, key, record.highest, reports)


@lru_cache(1024)
def key_of(stream: Stream) -> bytes:
    """A stream in a form of fixed size."""
    if stream == SERVICE:
        return _KEY.pack(0, 0, 0)
    task = Task.parse(stream.task)
    return _KEY.pack(stream.run, task.index, _KINDS.index(task.type))


@lru_cache(1024)
def stream_of(key: bytes) -> Stream:
    """The inverse of `key_of`."""
    run, index, kind = _KEY.unpack(key)
    return Stream(run, f"{_KINDS[kind]}-replica-{index}") if kind else SERVICE


def pack(entry: IndexEntry) -> bytes:
    data = _FIELDS.pack(*entry)
    return data + _CRC.pack(crc32(data))


def unpack(block: bytes, position: int) -> IndexEntry:
    """The entry at a position of a block. Raises IndexDamaged."""
    at = position * SIZE
    data, check = block[at : at + _FIELDS.size], block[at + _FIELDS.size : at + SIZE]
    if len(check) < _CRC.size or _CRC.unpack(check)[0] != crc32(data):
        raise IndexDamaged(f"entry {position + 1} of {len(block) // SIZE} is damaged")
    return IndexEntry._make(_FIELDS.unpack(data))


def read_block(path: Path, skip: int, most: int) -> bytes:
    """The entries after the first `skip`, `most` of them or as many as there are."""
    if not most:
        return b""
    try:
        with path.open("rb") as file:
            file.seek(skip * SIZE)
            block = file.read(most * SIZE)
    except FileNotFoundError:
        return b""
    return block[: len(block) // SIZE * SIZE]


def lines_of(path: Path) -> int:
    """The number of lines of an intact index."""
    last = size_of(path) // SIZE - 1
    return unpack(read_block(path, last, 1), 0).last if last >= 0 else 0


def read_between(path: Path, entries: int, after: int, until: int) -> bytes:
    """Those of the first `entries` entries that have lines behind the cursor `after`, up to `until`. Raises
    IndexDamaged, also where there are fewer entries."""
    if after >= until:
        return b""
    try:
        with path.open("rb", buffering=0) as file:

            def cursor(position: int) -> int:
                file.seek(position * SIZE)
                return unpack(file.read(SIZE), 0).cursor

            first = bisect_right(range(entries), after + 1, key=cursor) - 1
            last = bisect_right(range(entries), until, lo=first, key=cursor)
            file.seek(first * SIZE)
            block = file.read((last - first) * SIZE)
    except FileNotFoundError as error:
        raise IndexDamaged(f"{path} is gone") from error
    if len(block) < (last - first) * SIZE:
        raise IndexDamaged(f"{path} has become shorter")
    return block


def select(block: bytes, log_filter: LogFilter, keys: frozenset[bytes], back: bool) -> Iterator[IndexEntry]:
    """The entries of a block that may pass a filter; only records of these streams. `back`: the last one first. Raises
    IndexDamaged."""
    since = -NO_TIME if log_filter.since is None else instant(log_filter.since)
    for position in _positions(block, log_filter, back):
        if block[position * SIZE + _KEY_AT.start : position * SIZE + _KEY_AT.stop] in keys:
            entry = unpack(block, position)
            if entry.time >= since and (entry.may_report or not log_filter.reports):
                yield entry


def _positions(block: bytes, log_filter: LogFilter, back: bool) -> Iterable[int]:
    # One field of all entries is a strided slice, so that the search runs in C.
    total, step = len(block) // SIZE, -1 if back else 1
    if log_filter.severity:
        least = SEVERITIES.index(log_filter.severity)
        column, pattern = block[_SEVERITY_AT::SIZE], b"[%c-\xff]" % least
    elif log_filter.reports:
        column, pattern = block[_REPORT_AT::SIZE], b"\x01"
    else:
        return range(total)[::step]
    matches = (match.start() for match in re.finditer(pattern, column[::step]))
    return (total - 1 - at for at in matches) if back else matches
