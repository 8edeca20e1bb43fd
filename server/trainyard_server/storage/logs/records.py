"""Records of a segment: one line of ASCII for log lines that came together, with a CRC-32.

`5d1f06a9 [cursor,run,task,number,time,stream,severity,[text,text,...]]`, with a list of severities where they differ,
and a last element `1` for parts of a longer line, `2` for states of a progress bar that were overwritten, `3` for
routine lines of the service. JSON escapes line ends, so a record ends at the first newline, and the next record is
found behind a damaged one. Older releases wrote a record for each line, with its text alone.
"""

import json
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import IO, Any, NamedTuple
from zlib import crc32

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.lines.severity import SEVERITIES
from trainyard_protocol.wire.logs import LogLine
from trainyard_protocol.wire.logs import Stream as LineStream

DAMAGED = "(this line was damaged on the disk of the server)"
"""Text of a line whose record cannot be read."""

UNKNOWN_TIME = "1970-01-01T00:00:00Z"
"""Time of a line whose own time cannot be read."""

NO_TIME = 2**63 - 1
"""`microseconds` of an unknown time: later than any filter."""

OVERWRITTEN = 2
"""The kind of a line that is a state of a progress bar before its last."""

_NUMBERS = {name: number for number, name in enumerate(SEVERITIES)}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 10**6 * 2**37  # a clock may be wrong, but every time has to be one in every zone
_READ_AHEAD = 1 << 16
_CRC_LENGTH = 9  # 8 digits and a space
_quoted = json.encoder.encode_basestring_ascii  # json.dumps of a string, three times as fast


class Record(NamedTuple):
    """Lines of one stream, time and kind that came together. `cursor` and `number` are the first line's. `severity`: of
    all, or of each."""

    cursor: int
    run: int
    task: str
    number: int
    time: str
    stream: LineStream
    severity: str | list[str]
    texts: list[str]
    kind: int = 0

    def line(self, at: int) -> list[Any]:
        """The elements of one of its lines, as an array of the API."""
        cursor, run, task, number, time, stream, severity, texts, kind = self
        level = severity if isinstance(severity, str) else severity[at]
        elements = [cursor + at, run, task, number + at, time, stream, level, texts[at]]
        return [*elements, kind] if kind else elements

    @property
    def highest(self) -> int:
        """The number in SEVERITIES of its most severe line."""
        severity = self.severity
        return _NUMBERS[severity] if isinstance(severity, str) else max(map(_NUMBERS.__getitem__, severity))

    def encoded(self) -> bytes:
        cursor, run, task, number, time, stream, severity, texts, kind = self
        place = f'{cursor},{run},{_quoted(task)},{number},{_quoted(time)},"{stream}",{json.dumps(severity)}'
        data = f"[{place},[{','.join(map(_quoted, texts))}]{f',{kind}' if kind else ''}]\n".encode("ascii")
        return b"%08x " % crc32(data) + data


_TEXTS = Record._fields.index("texts")


def kind_of(line: LogLine) -> int:
    return 1 if line.partial else OVERWRITTEN if line.overwritten else 3 if line.routine else 0


def decode(raw: bytes) -> Record | None:
    """The inverse of `Record.encoded`; None if it is damaged."""
    data = raw[_CRC_LENGTH:]
    if not data.endswith(b"\n") or raw[:_CRC_LENGTH] != b"%08x " % crc32(data):
        return None
    values = json.loads(data)
    if isinstance(values[_TEXTS], str):
        values[_TEXTS] = [values[_TEXTS]]
    return Record(*values)


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


@lru_cache(256)
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
