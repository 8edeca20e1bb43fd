"""Records and index entries of new lines: the work that a server does for each line of every program, once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trainyard_protocol.lines.progress_reader import may_report
from trainyard_protocol.lines.severity import SEVERITIES, SeverityReader
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.logs.index import IndexEntry, key_of
from trainyard_server.storage.logs.records import NO_TIME, UNKNOWN_TIME, checked, kind_of, microseconds, quoted
from trainyard_server.storage.streams import SERVICE, Stream

_SEVERITY_NUMBERS = {name: number for number, name in enumerate(SEVERITIES)}


class Position(NamedTuple):
    """The place of the first of some new lines: behind line `total` of the job, as line `number` of its stream, at
    `offset` of the segment."""

    stream: Stream
    total: int
    number: int
    offset: int


@dataclass(slots=True)
class EncodedLines:
    """Lines as they are stored. `reports`: those that may report progress."""

    records: list[bytes] = field(default_factory=list)
    entries: list[IndexEntry] = field(default_factory=list)
    reports: list[LogLine] = field(default_factory=list)


def encode_lines(at: Position, lines: Sequence[LogLine], severities: SeverityReader, room: int | None) -> EncodedLines:
    """The first of the lines whose records fit into `room` bytes; None: all. `severities` has read those before."""
    encoded = EncodedLines()
    stream, cursor, number, offset = at
    key, head, is_service = key_of(stream), f"{stream.run},{quoted(stream.task)}", stream == SERVICE
    time, instant, shown = None, NO_TIME, ""
    for line in lines:
        if line.time != time:  # lines that were written together have one
            time = line.time
            instant = microseconds(time)
            shown = quoted(UNKNOWN_TIME if instant == NO_TIME else time)
        text = line.text
        level = "INFO" if is_service else severities.read(line.stream, text)
        kind = f",{kind_of(line)}" if line.partial or line.overwritten or line.routine else ""
        cursor += 1
        raw = checked(f'[{cursor},{head},{number},{shown},"{line.stream}","{level}",{quoted(text)}{kind}]')
        length = len(raw)
        if room is not None and (room := room - length) < 0:
            break
        reports = may_report(text)
        encoded.records.append(raw)
        encoded.entries.append(IndexEntry(instant, offset, length, number, key, _SEVERITY_NUMBERS[level], reports))
        if reports:
            encoded.reports.append(line)
        number += 1
        offset += length
    return encoded
