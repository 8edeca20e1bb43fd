"""Records of a segment: one line of ASCII for each log line, with a CRC-32.

`5d1f06a9 [cursor,run,task,number,time,stream,severity,text]`, with a last element `1` for a part of a longer line. JSON
escapes line ends, so a record ends at the first newline, and the next record is found behind a damaged one.
"""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zlib import crc32

from trainyard_protocol.config.fields import rfc3339
from trainyard_protocol.sync import LogLine
from trainyard_protocol.views import LogEntry, severity
from trainyard_server.storage.streams import SERVICE, Stream

DAMAGED = "(this line was damaged on the disk of the server)"
"""Text of a line whose record cannot be read."""

UNKNOWN_TIME = "1970-01-01T00:00:00Z"
"""Time of a line whose own time cannot be read."""

NO_TIME = 2**63 - 1
"""`microseconds` of an unknown time: later than any filter."""

_ELEMENTS = ("cursor", "run", "task", "number", "time", "stream", "severity", "text", "partial")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CRC_LENGTH = 9  # 8 digits and a space
_to_json = json.JSONEncoder(separators=(",", ":")).encode


def entry_of(*values: Any) -> LogEntry:
    """A line from the elements of its record."""
    return LogEntry(**dict(zip(_ELEMENTS, values, strict=False)))


def log_entry(cursor: int, stream: Stream, number: int, line: LogLine) -> LogEntry:
    """A line of a stream as readers get it."""
    time = UNKNOWN_TIME if microseconds(line.time) == NO_TIME else line.time
    level = "INFO" if stream == SERVICE else severity(line.stream, line.text)
    return entry_of(
        cursor, stream.run, stream.task, number, time, line.stream, level, line.text, line.partial
    )


def encode(entry: LogEntry) -> bytes:
    """The record of a line, with its newline."""
    elements = [getattr(entry, name) for name in _ELEMENTS[:-1]] + [1] * entry.partial
    data = _to_json(elements).encode("ascii") + b"\n"
    return b"%08x " % crc32(data) + data


def decode(raw: bytes) -> LogEntry | None:
    """The line of a record; None if it is damaged."""
    data = raw[_CRC_LENGTH:]
    if not data.endswith(b"\n") or raw[:_CRC_LENGTH] != b"%08x " % crc32(data):
        return None
    return entry_of(*json.loads(data))


def microseconds(time: str) -> int:
    """RFC 3339 as microseconds since 1970, NO_TIME if it is none. A time without a zone is UTC."""
    try:
        at = datetime.fromisoformat(time)
    except ValueError:
        return NO_TIME
    if time == UNKNOWN_TIME:
        return NO_TIME
    return instant(at if at.tzinfo is not None else at.replace(tzinfo=UTC))


def instant(at: datetime) -> int:
    """A time as microseconds since 1970."""
    return (at - _EPOCH) // timedelta(microseconds=1)


def time_text(time: int) -> str:
    """The inverse of `microseconds`."""
    return UNKNOWN_TIME if time == NO_TIME else rfc3339(_EPOCH + timedelta(microseconds=time))
