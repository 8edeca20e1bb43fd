"""Records and index entries of new lines: the work that a server does for the lines of every program, once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from operator import itemgetter
from typing import NamedTuple

from trainyard_protocol.lines.progress_reader import may_report
from trainyard_protocol.lines.severity import SeverityReader
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.logs.index import IndexEntry, index_entry
from trainyard_server.storage.logs.records import NO_TIME, UNKNOWN_TIME, Record, kind_of, microseconds
from trainyard_server.storage.streams import SERVICE, Stream

_MOST = 500  # lines of a record: a reader of one reads all


class Position(NamedTuple):
    """The place of the first of some new lines: behind line `total` of the job, as line `number` of its stream, at
    `offset` of the segment."""

    stream: Stream
    total: int
    number: int
    offset: int


@dataclass(slots=True)
class EncodedLines:
    """Lines as they are stored, and their number. `reports`: those that may report progress."""

    records: list[bytes] = field(default_factory=list)
    entries: list[IndexEntry] = field(default_factory=list)
    reports: list[LogLine] = field(default_factory=list)
    count: int = 0


def encode_lines(at: Position, lines: Sequence[LogLine], severities: SeverityReader, room: int | None) -> EncodedLines:
    """The first of the lines whose records fit into `room` bytes; None: all. `severities` has read those before."""
    encoded = EncodedLines()
    stream, total, number, offset = at
    for some in _alike(lines):
        first = some[0]
        time = UNKNOWN_TIME if microseconds(first.time) == NO_TIME else first.time
        texts = [line.text for line in some]
        levels = ["INFO"] if stream == SERVICE else severities.read_all(first.stream, texts)
        severity = levels if len(set(levels)) > 1 else levels[0]
        cursor = total + encoded.count + 1
        place = cursor, stream.run, stream.task, number + encoded.count, time, first.stream, severity
        record = Record(*place, texts, kind_of(first))
        raw = record.encoded()
        if room is not None and len(raw) > room:
            record = _fitting(record, room)
            raw = record.encoded()
        if record.texts:
            reports = [line for line in some[: len(record.texts)] if may_report(line.text)]
            entry = index_entry(record, offset, len(raw), bool(reports))
            encoded.records.append(raw)
            encoded.entries.append(entry)
            encoded.reports += reports
            encoded.count += entry.lines
            offset = entry.end
        if len(record.texts) < len(texts):
            break
        if room is not None:
            room -= len(raw)
    return encoded


def _alike(lines: Sequence[LogLine]) -> Iterator[list[LogLine]]:
    """The lines in groups that a record can have."""
    for _, group in groupby(lines, itemgetter(0, 1, 3, 4, 5)):
        while some := list(islice(group, _MOST)):
            yield some


def _fitting(record: Record, room: int) -> Record:
    """The record without the last lines for which `room` bytes do not suffice."""
    alone = [len(record._replace(texts=[text]).encoded()) for text in record.texts]
    empty = len(record._replace(texts=[]).encoded())
    sizes = accumulate(size - empty + 1 for size in alone)  # with a comma
    count = sum(empty + size - 1 <= room for size in sizes)
    severity = record.severity if isinstance(record.severity, str) else record.severity[:count]
    return record._replace(texts=record.texts[:count], severity=severity)
