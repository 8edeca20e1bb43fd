"""Records of a segment: one line of ASCII for each log line, with a CRC-32.

`5d1f06a9 [cursor,run,task,number,time,stream,severity,text]`, with a last element `1` for a part of a longer line, `2`
for a state of a progress bar that was overwritten, `3` for a routine line of the service. JSON escapes line ends, so a
record ends at the first newline, and the next record is found behind a damaged one.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import IO, Any
from zlib import crc32

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.wire.logs import LogLine

DAMAGED = "(this line was damaged on the disk of the server)"
"""Text of a line whose record cannot be read."""

UNKNOWN_TIME = "1970-01-01T00:00:00Z"
"""Time of a line whose own time cannot be read."""

NO_TIME = 2**63 - 1
"""`microseconds` of an unknown time: later than any filter."""

_ELEMENTS = ("cursor", "run", "task", "number", "time", "stream", "severity", "text")
_KINDS = ("", "partial", "overwritten", "routine")
"""Kinds of lines, by the last element of their records."""

OVERWRITTEN = _KINDS.index("overwritten")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 10**6 * 2**37  # a clock may be wrong, but every time has to be one in every zone
_READ_AHEAD = 1 << 16
_CRC_LENGTH = 9  # 8 digits and a space
_to_json = json.JSONEncoder(separators=(",", ":")).encode
quoted = json.encoder.encode_basestring_ascii  # json.dumps of a string, three times as fast


def entry_of(*values: Any) -> LogEntry:
    """A line from the elements of its record."""
    fields, kind = dict(zip(_ELEMENTS, values, strict=False)), values[len(_ELEMENTS) :]
    return LogEntry(**fields, **({_KINDS[kind[0]]: True} if kind else {}))


def elements_of(entry: LogEntry) -> list[Any]:
    """The elements of a line's record."""
    kind = kind_of(entry)
    return [getattr(entry, name) for name in _ELEMENTS] + ([kind] if kind else [])


def kind_of(line: LogEntry | LogLine) -> int:
    return 1 if line.partial else 2 if line.overwritten else 3 if line.routine else 0


def checked(elements: str) -> bytes:
    """The record of a line with these elements, in JSON of ASCII alone."""
    data = elements.encode("ascii") + b"\n"
    return b"%08x " % crc32(data) + data


def decode(raw: bytes) -> LogEntry | None:
    """The line of a record; None if it is damaged."""
    data = raw[_CRC_LENGTH:]
    if not data.endswith(b"\n") or raw[:_CRC_LENGTH] != b"%08x " % crc32(data):
        return None
    return entry_of(*json.loads(data))


def array_of(raw: bytes, cursor: int) -> bytes:
    """The elements of an intact record of that line, as JSON; empty if it is damaged."""
    data = raw[_CRC_LENGTH:]
    is_intact = data.endswith(b"\n") and raw[:_CRC_LENGTH] == b"%08x " % crc32(data)
    return data[:-1] if is_intact and data.startswith(b"[%d," % cursor) else b""


def array_of_entry(entry: LogEntry) -> bytes:
    return _to_json(elements_of(entry)).encode("ascii")


class RecordReader:
    """Reads records of a segment; with `is_forward` together with those behind them, which are asked for next."""

    def __init__(self, file: IO[bytes] | None, is_forward: bool = False) -> None:
        self._file = file
        self._ahead = _READ_AHEAD if is_forward else 0
        self._block = b""
        self._start = 0

    def record(self, offset: int, length: int) -> bytes:
        """The bytes of a record, or as many of them as the disk has; none if it cannot read them."""
        at = offset - self._start
        if at < 0 or at + length > len(self._block):
            self._block, self._start, at = self._read(offset, max(length, self._ahead)), offset, 0
            if len(self._block) < length and self._ahead:  # what is behind it may be what cannot be read
                return self._read(offset, length)
        return self._block[at : at + length]

    def _read(self, offset: int, length: int) -> bytes:
        try:
            if self._file is None:
                return b""
            self._file.seek(offset)
            return self._file.read(length)
        except OSError:
            return b""


def microseconds(time: str) -> int:
    """RFC 3339 as microseconds since 1970, NO_TIME if it is none of a usual year. A time without a zone is UTC."""
    try:
        at = datetime.fromisoformat(time)
    except ValueError:
        return NO_TIME
    if time == UNKNOWN_TIME:
        return NO_TIME
    passed = instant(at if at.tzinfo is not None else at.replace(tzinfo=UTC))
    return passed if 0 <= passed < _LATEST else NO_TIME


def instant(at: datetime) -> int:
    """A time as microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def time_text(time: int) -> str:
    """The inverse of `microseconds`."""
    return UNKNOWN_TIME if time == NO_TIME else rfc3339(_EPOCH + timedelta(microseconds=time))
