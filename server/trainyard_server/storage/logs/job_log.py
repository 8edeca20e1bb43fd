"""One job's log as one process of the server knows it, and how it is written under the lock of all of them."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from trainyard_protocol.sync import LogDigest, LogEnd, LogLine
from trainyard_server.storage.file_lock import Held
from trainyard_server.storage.logs import repair as log_repair
from trainyard_server.storage.logs.codec import decode, encode
from trainyard_server.storage.logs.index import (
    INDEX,
    LOST,
    SERVICE,
    SIZE,
    Stream,
    count,
    cut_to,
    packed,
    records,
    stream_of,
    write_at,
)

logger = logging.getLogger(__name__)


class LogMismatch(Exception):
    """A replica's log is not what its agent says it should be. `have` is the number of lines here."""

    def __init__(self, have: int, end: LogEnd) -> None:
        if have != end.count:
            super().__init__(f"{have} lines are here, its agent counted {end.count}")
        else:
            super().__init__(f"its {have} lines do not have the digest that its agent computed")
        self.have = have


class Appended(NamedTuple):
    """`next`: the line that the stream wants now; `new`: how many lines were taken; `full`: the quota is used up
    and more were there."""

    next: int
    new: int
    full: bool = False


@dataclass(slots=True)
class Position:
    """Where a stream stands: its lines and bytes that the index has."""

    count: int = 0
    size: int = 0


@dataclass(slots=True)
class Doubt:
    """Lines `ask` to `until` of a stream may be damaged: whoever still has them is asked for them once more. `lost`:
    how many of them could not be put back. `place`: a line's number, and how many records come before its own."""

    ask: int
    until: int
    lost: int = 0
    place: tuple[int, int] = (0, 0)


class JobLog:
    """One job's directory. `view` guards what this process knows of it; `writing` is taken before the lock on disk.

    `note(name, what)` is told what is damaged, by the name of the file; "" when it is whole again.
    """

    def __init__(self, directory: Path, note: Callable[[str, str], None]) -> None:
        self.directory = directory
        self.view = Lock()
        self.writing = Lock()
        self.total = 0
        self.positions: dict[Stream, Position] = {}
        self.checked = False
        """Whether this process has compared the index with the files."""
        self._note = note
        self._digests: dict[Stream, tuple[int, LogDigest]] = {}  # of each stream's first so many bytes
        self._doubts: dict[Stream, Doubt] = {}
        self._asked: set[Stream] = set()  # whose lines have been asked for again because of their digest
        self._lost: dict[Stream, list[range]] = {}  # lines that were asked for again, and did not come back
        self._places: dict[Stream, tuple[int, int]] = {}
        self._sure = False  # a record with a check was met: all that follow have one

    @property
    def doubtful(self) -> bool:
        return bool(self._doubts)

    def catch_up(self) -> bool:
        """Takes note of what the index has more by now; False where it is damaged. Needs no lock on the disk."""
        index = self.directory / INDEX
        if count(index) < self.total:
            self.forget()
        last, position = LOST, Position()
        for stream, offset, length, sure in records(index, self.total):
            if stream is None or (self._sure and not sure):
                return False
            self._sure = sure
            if stream is not last:
                if stream == LOST:
                    self.total += 1
                    continue
                last, position = stream, self.positions.get(stream) or Position()
            if offset != position.size:
                return False
            if not position.count:
                self.positions[stream] = position
            position.size += length
            position.count += 1
            self.total += 1
        return True

    def forget(self) -> None:
        """What is known is not so any more: all is read and compared anew."""
        self.total, self.checked, self._sure = 0, False, False
        self.positions.clear()
        self._digests.clear()
        self._places.clear()

    def ready(self, lock: Held) -> None:
        """Repairs what a writer that was killed, a power failure or the disk has left. Under the lock."""
        whole = self.catch_up()
        if unfinished := lock.unfinished:
            # Nobody was told that these lines are here: whoever has them sends them again.
            stream = stream_of(Path(unfinished))
            if stream is None:
                self.checked = False
            elif whole:
                cut_to(self.directory / INDEX, self.total * SIZE)
                cut_to(self.directory / unfinished, self._size(stream))
            lock.finish()
        if not whole or not self.checked:
            self._check(whole)

    def append(
        self, lock: Held, stream: Stream, start: int, lines: Sequence[LogLine], quota: int = 0
    ) -> Appended:
        position = self.positions.get(stream) or Position()
        if start > position.count:
            return Appended(self.next(stream), 0)
        if stream in self._doubts:
            self._heal(stream, start, lines)
        fresh = lines[position.count - start :]
        if not fresh:
            return Appended(self.next(stream), 0)
        room = quota - self.kept() if quota and stream != SERVICE else None
        data, index, taken = bytearray(), bytearray(), 0
        for number, line in enumerate(fresh, position.count):
            raw = encode(number, self.total + taken + 1, line)
            if room is not None and len(data) + len(raw) > room:
                break
            index += packed(stream, position.size + len(data), len(raw))
            data += raw
            taken += 1
        full = taken < len(fresh)
        if not taken:
            return Appended(self.next(stream), 0, full)
        self._write(lock, stream, position, data, index)
        hashed, sha = self._digests.get(stream, (0, LogDigest()))
        if hashed == position.size:
            for line in fresh[:taken]:
                sha.add(line.stream, line.text)
            self._digests[stream] = (hashed + len(data), sha)
        position.count += taken
        position.size += len(data)
        self.positions[stream] = position
        self.total += taken
        return Appended(self.next(stream), taken, full)

    def verify(self, stream: Stream, end: LogEnd) -> bool:
        position = self.positions.get(stream) or Position()
        if position.count < end.count:
            return False
        if position.count > end.count:
            raise LogMismatch(position.count, end)
        self._compare_size(stream)
        if stream in self._doubts:
            return False
        if self._digest(stream, position) == end.sha256:
            return True
        if not position.count or stream in self._asked:
            raise LogMismatch(position.count, end)
        self._asked.add(stream)
        self.doubt(stream, 0, position.count, "its lines do not have the digest that its agent computed")
        return False

    def next(self, stream: Stream) -> int:
        """The line that is wanted next: the first that may be damaged, or the one after the last."""
        position = self.positions.get(stream)
        have = position.count if position is not None else 0
        doubt = self._doubts.get(stream)
        return have if doubt is None else min(have, doubt.ask)

    def kept(self) -> int:
        """How many bytes the replicas' lines take."""
        return sum(position.size for stream, position in self.positions.items() if stream != SERVICE)

    def doubt(self, stream: Stream, ask: int, until: int, what: str) -> None:
        """These lines are damaged, or may be. They are asked for once more, and only once."""
        if all(any(number in lost for lost in self._lost.get(stream, ())) for number in (ask, until - 1)):
            return
        known = self._doubts.get(stream)
        self._doubts[stream] = (
            Doubt(ask, until) if known is None else Doubt(min(known.ask, ask), max(known.until, until))
        )
        self._digests.pop(stream, None)
        self._note(stream.filename, what)

    def number(self, stream: Stream, cursor: int) -> int:
        """Which line of its stream the one at a cursor is, told by the index alone."""
        before, number = self._places.get(stream, (0, 0))
        if before >= cursor:
            before, number = 0, 0
        for at, record in enumerate(records(self.directory / INDEX, before), before + 1):
            if at == cursor:
                break
            number += record.stream == stream
        self._places[stream] = (cursor - 1, number)
        return number

    def _size(self, stream: Stream) -> int:
        position = self.positions.get(stream)
        return position.size if position is not None else 0

    def _write(
        self, lock: Held, stream: Stream, position: Position, data: bytearray, index: bytearray
    ) -> None:
        """The lines first, then their records: a record never points to what is not there."""
        self._compare_size(stream)
        path = self.directory / stream.filename
        lock.begin(stream.filename)
        try:
            cut_to(path, position.size)
            write_at(path, position.size, data)
            write_at(self.directory / INDEX, self.total * SIZE, index)
        except OSError:
            # What has a whole record may have been read already, so it stays; the rest never was.
            self.catch_up()
            cut_to(self.directory / INDEX, self.total * SIZE)
            cut_to(path, self._size(stream))
            lock.finish()
            raise
        lock.finish()

    def _check(self, whole: bool) -> None:
        """Compares the index with the files, and makes each fit the other."""
        sizes = {
            stream: path.stat().st_size
            for path in self.directory.glob("*.jsonl")
            if (stream := stream_of(path)) is not None
        }
        if not whole or any(size > self._size(stream) for stream, size in sizes.items()):
            before = self.total
            lost = log_repair.rebuild(self.directory, self.total, self.positions, sizes)
            self.catch_up()
            if not whole or self.total > before:
                logger.warning(
                    "The index of the log in %s was repaired from line %d on", self.directory, before + 1
                )
            if lost:
                self._note(INDEX, f"it was damaged, and {lost} of its lines cannot be told any more")
        for stream, size in sizes.items():
            if size > self._size(stream):
                cut_to(self.directory / stream.filename, self._size(stream))
        for stream in list(self.positions):
            self._compare_size(stream)
        self.checked = True

    def _compare_size(self, stream: Stream) -> None:
        """A file that has become shorter than the index says lacks its last lines."""
        position = self.positions.get(stream)
        if position is None:
            return
        try:
            size, what = (self.directory / stream.filename).stat().st_size, ""
        except FileNotFoundError:
            size, what = 0, "its file is missing"
        if size >= position.size or (stream in self._doubts and self._doubts[stream].until == position.count):
            return
        number = 0
        for owner, offset, length, _ in records(self.directory / INDEX, 0):
            if owner == stream:
                if offset + length > size:
                    break
                number += 1
        self.doubt(
            stream, number, position.count, what or f"the last {position.size - size} bytes are missing"
        )

    def _digest(self, stream: Stream, position: Position) -> str:
        """Of the lines on the disk, but for those that were hashed when they came; "" where one is damaged."""
        hashed, sha = self._digests.pop(stream, (0, LogDigest()))
        try:
            if hashed < position.size:
                with (self.directory / stream.filename).open("rb") as file:
                    file.seek(hashed)
                    while hashed < position.size and (raw := file.readline()):
                        hashed += len(raw)
                        line = decode(raw)
                        if line is None:
                            return ""
                        sha.add(line["stream"], line["text"])
        except OSError:
            logger.exception("The log %s of %s cannot be read", stream.filename, self.directory)
            return ""
        self._digests[stream] = (hashed, sha)
        return sha.hexdigest()

    def _heal(self, stream: Stream, start: int, lines: Sequence[LogLine]) -> None:
        """Puts lines that were sent again back into their places. A line is always written as the same bytes; where
        they do not fit, it is another line, and the one that is lost stays lost."""
        doubt = self._doubts[stream]
        if not start <= doubt.ask < start + len(lines):
            return
        path = self.directory / stream.filename
        number, before = doubt.place if doubt.place[0] <= doubt.ask else (0, 0)
        for cursor, record in enumerate(records(self.directory / INDEX, before), before + 1):
            if record.stream != stream:
                continue
            if number >= min(doubt.until, start + len(lines)):
                doubt.place = (number, cursor - 1)
                break
            if number == doubt.ask:
                self._put_back(stream, doubt, record.offset, record.length, cursor, lines[number - start])
                doubt.ask += 1
            number += 1
        if doubt.ask >= doubt.until:
            del self._doubts[stream]
            self._digests.pop(stream, None)
            path.touch()
            if path.stat().st_size < self._size(stream):
                os.truncate(path, self._size(stream))  # what is lost is a hole: the next line is behind it
            self._note(stream.filename, f"{doubt.lost} of its lines are lost" if doubt.lost else "")

    def _put_back(
        self, stream: Stream, doubt: Doubt, offset: int, length: int, cursor: int, line: LogLine
    ) -> None:
        path = self.directory / stream.filename
        versions = (encode(doubt.ask, cursor, line), encode(doubt.ask, None, line))
        raw = next((raw for raw in versions if len(raw) == length), None)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                there = file.read(length)
        except FileNotFoundError:
            there = b""
        if raw is not None and there != raw:
            write_at(path, offset, raw)
        elif raw is None and decode(there) is None:
            doubt.lost += 1
            lost = self._lost.setdefault(stream, [])
            begin = lost.pop().start if lost and lost[-1].stop == doubt.ask else doubt.ask
            lost.append(range(begin, doubt.ask + 1))
