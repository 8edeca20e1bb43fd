"""One job's log on the disk: a segment of records and its index, as one process of the server knows them.

A writer holds the lock of the directory, and writes records to the segment first and their entries to the index after.
Lines exist for readers once their entry is whole; they take no lock. What a killed writer left behind the last entry is
added to the index by the next writer, record by record, and a torn record at the end is cut off.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, RLock
from typing import IO, Any, NamedTuple

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.lines.progress_reader import may_report
from trainyard_protocol.lines.severity import SEVERITIES, SeverityReader
from trainyard_protocol.wire.logs import LogDigest, LogEnd, LogLine
from trainyard_server.storage.files import LOCK, size_of, truncate, write_at
from trainyard_server.storage.logs import index
from trainyard_server.storage.logs.encoding import Position, encode_lines
from trainyard_server.storage.logs.filter import LogFilter
from trainyard_server.storage.logs.index import IndexDamaged, IndexEntry
from trainyard_server.storage.logs.records import DAMAGED, NO_TIME, Record, RecordReader, decode, time_text
from trainyard_server.storage.streams import SERVICE, Stream

_SCAN = 20_000  # index entries that one read goes through
_READ_BYTES = 4 * 2**20  # bytes of records that one read goes through
_RESULT_BYTES = 2**20  # bytes of records of the lines that one read returns, if there are several
_REPORTS = 100  # damaged lines of a job that are logged
_BLOCK = 10_000  # index entries that are read or written at once
_OLD_INDEX = "segment.index"  # of releases that had a record and an entry for each line

TIME_STEP = 1000
"""Lines between two of `JobLog.latest`."""

logger = logging.getLogger(__name__)


class LogMismatch(Exception):
    """A replica's log is not what its agent has sent. `have`: the number of lines that the server has."""

    def __init__(self, have: int, end: LogEnd, damaged: int = 0) -> None:
        message = f"its {have} lines do not have the digest that its agent computed"
        if have != end.count:
            message = f"{have} lines are here, its agent counted {end.count}"
        elif damaged:
            message = f"{damaged} of its {have} lines were damaged on the disk of the server"
        super().__init__(message)
        self.have = have


class Appended(NamedTuple):
    """`next`: the number of the stream's next line; `new`: how many lines were added; `full`: the quota is used up and
    lines were left out. `reports`: those of the added lines that may report progress."""

    next: int
    new: int
    full: bool = False
    reports: Sequence[LogLine] = ()


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The lines from cursor `first` to `last` that pass a filter, the oldest first, as arrays of the API; `last` <
    `first`: of none. `more`: there are lines behind `last`."""

    arrays: tuple[list[Any], ...]
    first: int
    last: int
    more: bool

    @property
    def entries(self) -> tuple[LogEntry, ...]:
        return tuple(map(LogEntry.of_array, self.arrays))


@dataclass(slots=True)
class _StreamState:
    """Lines and bytes of a stream, and the digest of its first lines as far as this process has computed it; the reader
    of its severities, if this process has written its last line."""

    count: int = 0
    size: int = 0
    digest: LogDigest = field(default_factory=lambda: LogDigest(chain=None))
    severities: SeverityReader = field(default_factory=SeverityReader)


class JobLog:
    """One job's directory. `writing` is held by the thread that has or awaits the lock on the disk; `view` guards the
    attributes. `recover`, `append` and `verify` need both and the lock on the disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.segment = directory / "segment"
        self.view = RLock()
        self.writing = Lock()
        self.checked = False
        """Whether this process has compared the index with the segment."""
        self.total = 0
        """Number of lines, and the cursor of the last one."""
        self.latest: list[int] = []
        """The latest time of the first lines, in microseconds since 1970: of TIME_STEP lines, of twice as many, ..."""
        self._latest = 0
        self._index = directory / "segment.records"
        self._entries = 0  # of the index
        self._end = 0  # where the next record begins in the segment
        self._streams: dict[Stream, _StreamState] = {}
        self._reported: set[int] = set()  # cursors of damaged lines that were logged

    @property
    def counts(self) -> dict[Stream, int]:
        """Number of lines of each stream."""
        return {stream: state.count for stream, state in sorted(self._streams.items())}

    def refresh(self) -> bool:
        """Read the entries that the index has gained. False if it is damaged or has become shorter."""
        entries = size_of(self._index) // index.SIZE
        if entries == self._entries:
            return True
        if entries < self._entries:
            self.reset()
            return False
        try:
            while block := index.read_block(self._index, self._entries, _BLOCK):
                for position in range(len(block) // index.SIZE):
                    self._note(index.unpack(block, position))
        except IndexDamaged:
            return False
        return True

    def reset(self) -> None:
        """Forget everything that was read, so that the next refresh begins anew."""
        self.total, self._entries, self._end, self.checked = 0, 0, 0, False
        self.latest, self._latest = [], 0
        self._streams.clear()

    def recover(self) -> None:
        """Bring index and segment into agreement: add missing entries, cut off what is torn or missing."""
        if not self.checked and not self.total and [path.name for path in self.directory.iterdir()] == [LOCK]:
            self.checked = True
            return  # a new log
        is_intact = self.refresh()
        if is_intact and self.checked and size_of(self.segment) == self._end:
            return
        before = self.total
        try:
            self._add_missing_entries()
            self._drop_missing_records()
        except OSError:
            self.reset()  # what was noted may not be in the index
            raise
        truncate(self._index, self._entries * index.SIZE)
        truncate(self.segment, self._end)
        if (old := self.directory / _OLD_INDEX).exists():
            old.unlink()
        elif not is_intact or self.total != before:
            logger.warning("Repaired the index of the log in %s from line %d on", self.directory, before + 1)
        self.checked = True

    def append(self, stream: Stream, start: int, lines: Sequence[LogLine], quota: int) -> Appended:
        """See LogStore.append."""
        state = self._streams.get(stream) or _StreamState()
        fresh = lines[state.count - start :] if start <= state.count else ()
        severities = SeverityReader(state.count)
        if state.severities.count == state.count:
            severities.traceback = state.severities.traceback
        room = None
        if quota and stream != SERVICE:
            room = quota - sum(other.size for owner, other in self._streams.items() if owner != SERVICE)
        new = encode_lines(Position(stream, self.total, state.count, self._end), fresh, severities, room)
        if new.entries:
            write_at(self.segment, self._end, b"".join(new.records))
            write_at(self._index, self._entries * index.SIZE, b"".join(map(index.pack, new.entries)))
            for entry in new.entries:
                self._note(entry)
            state = self._streams[stream]
            state.severities = severities
            if state.digest.count == state.count - new.count:
                state.digest.extend((line.stream, line.text) for line in fresh[: new.count])
        return Appended(state.count, new.count, new.count < len(fresh), tuple(new.reports))

    def verify(self, stream: Stream, end: LogEnd) -> bool:
        """See LogStore.verify."""
        state = self._streams.get(stream) or _StreamState()
        if state.count < end.count:
            return False
        if state.count > end.count:
            raise LogMismatch(state.count, end)
        if state.digest.count < state.count or (state.digest.chain is None and not end.sha256):
            digest, damaged = LogDigest(chain=None if end.sha256 else ""), 0
            log_filter = LogFilter(frozenset((stream.task,)), run=stream.run)
            for entry in all_entries(lambda after: self.read(log_filter, after)):
                digest.add(entry.stream, entry.text)
                damaged += entry.text == DAMAGED
            if damaged or digest.count < state.count:
                raise LogMismatch(state.count, end, damaged + state.count - digest.count)
            state.digest = digest
        if (state.digest.hexdigest() if end.sha256 else state.digest.chain) != (end.sha256 or end.chain):
            raise LogMismatch(state.count, end)
        return True

    def sha256(self, stream: Stream) -> str:
        """The digest of a stream that was verified."""
        return self._streams[stream].digest.hexdigest() if stream in self._streams else LogDigest().hexdigest()

    def read(
        self, log_filter: LogFilter, after: int = 0, until: int | None = None, max_lines: int = 500, back: bool = False
    ) -> ReadResult:
        """The first lines behind `after` and up to `until`, or the last ones with `back`. See LogStore.read. Raises
        IndexDamaged."""
        with self.view:
            keys = frozenset(map(index.key_of, filter(log_filter.passes_stream, self._streams)))
            total, entries = self.total, self._entries
        limit = total if until is None else max(0, min(until, total))
        begin = max(after, limit - _SCAN) if back else after
        end = limit if back else max(after, min(limit, after + _SCAN))
        block = index.read_between(self._index, entries, begin, end)
        arrays: list[list[Any]] = []
        size = read = stop = 0
        with _opened(self.segment) as file:
            records = RecordReader(file, is_forward=not back)
            for place in index.select(block, log_filter, keys, back):
                some = range(max(begin + 1, place.cursor), min(end, place.last) + 1)[:: -1 if back else 1]
                if read > _READ_BYTES:
                    stop = some[0]
                    break
                raw = records.record(place.offset, place.length)
                read += place.length
                if not log_filter.may_pass(raw):
                    continue
                record = self._record(place, raw)
                for cursor in some:
                    line = record.line(cursor - place.cursor)
                    *_, severity, text = line[:8]
                    if log_filter.passes_line(severity, text):
                        if len(arrays) == max_lines or (arrays and size + len(text) > _RESULT_BYTES):
                            stop = cursor
                            break
                        arrays.append(line)
                        size += len(text)
                if stop:
                    break
        if stop:
            begin, end = (stop, end) if back else (begin, stop - 1)
        if back:
            arrays.reverse()
        more = end < (total if back else limit)
        return ReadResult(tuple(arrays), begin + 1, end, more)

    def latest_in(self, step: int) -> list[int]:
        """The latest time up to each line of a step of TIME_STEP lines, in microseconds since 1970. Raises
        IndexDamaged."""
        with self.view:
            latest = max(self.latest[step - 1 : step], default=0)
            begin, end = step * TIME_STEP, min((step + 1) * TIME_STEP, self.total)
            block = index.read_between(self._index, self._entries, begin, end)
        times: list[int] = []
        for position in range(len(block) // index.SIZE):
            entry = index.unpack(block, position)
            latest = latest if entry.time == NO_TIME else max(latest, entry.time)
            times += [latest] * (min(end, entry.last) - max(begin, entry.cursor - 1))
        return times

    def _record(self, place: IndexEntry, raw: bytes) -> Record:
        """The record at a place, or what readers get instead if it is damaged: what the index knows of it."""
        record = decode(raw)
        if record is not None and (record.cursor, len(record.texts)) == (place.cursor, place.lines):
            return record
        if place.cursor not in self._reported and len(self._reported) < _REPORTS:
            self._reported.add(place.cursor)
            logger.error("Lines %d to %d of the log in %s are damaged", place.cursor, place.last, self.directory)
        stream = index.stream_of(place.key)
        level, time = SEVERITIES[place.severity], time_text(place.time)
        texts = [DAMAGED] * place.lines
        return Record(place.cursor, stream.run, stream.task, place.number, time, "stderr", level, texts)

    def _note(self, entry: IndexEntry) -> None:
        if entry.offset < self._end or entry.cursor != self.total + 1:
            raise IndexDamaged(f"Line {self.total + 1} of {self.directory} overlaps the one before it")
        self.total = entry.last
        self._entries += 1
        self._end = entry.end
        if entry.time != NO_TIME:
            self._latest = max(self._latest, entry.time)
        self.latest += [self._latest] * (self.total // TIME_STEP - len(self.latest))
        if entry.key != index.LOST:
            stream = index.stream_of(entry.key)
            if (state := self._streams.get(stream)) is None:
                state = self._streams[stream] = _StreamState()
            state.count = entry.number + entry.lines
            state.size += entry.length

    def _add_missing_entries(self) -> None:
        """Write an entry for each record behind the last intact entry. A record knows its cursors, so that the lines
        behind a damaged one keep theirs. Lines that neither file knows keep their cursors only."""
        entries = bytearray()

        def add(entry: IndexEntry) -> None:
            self._note(entry)
            entries.extend(index.pack(entry))
            if len(entries) >= _BLOCK * index.SIZE:
                flush()

        def flush() -> None:
            write_at(self._index, self._entries * index.SIZE - len(entries), entries)
            entries.clear()

        offset = self._end
        with _opened(self.segment) as file:
            if file is not None:
                file.seek(offset)
            for raw in file or ():
                record = decode(raw)
                if record is not None and record.cursor > self.total:
                    while lost := record.cursor - 1 - self.total:
                        add(self._old_entry(offset, lost) or _lost(self._end, self.total, lost))
                    add(index.index_entry(record, offset, len(raw), any(map(may_report, record.texts))))
                offset += len(raw)
        while (entry := self._old_entry(offset)) is not None:
            add(entry)
        flush()

    def _old_entry(self, until: int, most: int = 2**32) -> IndexEntry | None:
        """The entry of the next lines that is still in the index, if it is intact, has `most` of them, and its record
        ends by `until`."""
        try:
            entry = index.unpack(index.read_block(self._index, self._entries, 1), 0)
        except IndexDamaged:
            return None
        is_next = entry.cursor == self.total + 1 and self._end <= entry.offset
        return entry if is_next and entry.end <= until and entry.lines <= most else None

    def _drop_missing_records(self) -> None:
        """Drop the last lines if a power failure took their records: the segment ends before them, or has only zeros
        there. Their agents send them again."""
        entries, size, missing = self._entries, size_of(self.segment), 0
        with _opened(self.segment) as file:
            while entries:
                entry = index.unpack(index.read_block(self._index, entries - 1, 1), 0)
                raw = RecordReader(file).record(entry.offset, entry.length)
                if entry.end <= size and (not raw or raw.strip(b"\0")):
                    break  # `not raw`: the disk has it, but cannot read it
                entries -= 1
                missing += entry.lines
        if missing:
            logger.error("The last %d lines of the log in %s are missing", missing, self.directory)
            truncate(self._index, entries * index.SIZE)
            self.reset()
            self.refresh()


def all_entries(read: Callable[[int], ReadResult]) -> Iterator[LogEntry]:
    """The lines of all reads, each of which begins behind the cursor at which the one before it ended."""
    after, more = 0, True
    while more:
        result = read(after)
        yield from result.entries
        after, more = result.last, result.more


def _lost(end: int, total: int, count: int) -> IndexEntry:
    """The entry of so many lines behind the first `total` that are lost."""
    return IndexEntry(0, end, 0, total + 1, 0, count, index.LOST, 0, 0)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes] | None]:
    """The file for reading; None if it does not exist. Raises OSError."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield None
        return
    with file:
        yield file
