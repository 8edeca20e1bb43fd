"""The index of a job's log: fixed-size records, one for each line in the order of arrival, each with a check.

A record says whose line it is and where it lies in its stream's file. Within a stream each record begins where the
one before it ended, so that one that is damaged stands out twice: by its check, and by the chain that it breaks.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trainyard_protocol.cluster import TASK_TYPES, Task
from trainyard_protocol.views import SERVICE_TASK

INDEX = "index"

_RECORD = struct.Struct("<IBBHQI")  # run, kind of task, check, index of task, offset, length
_KINDS = (SERVICE_TASK, *TASK_TYPES)
_NOBODY = 255  # the kind of a record whose line nobody knows any more
_AT_ONCE = 1024  # records

SIZE = _RECORD.size


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """One writer of a job's log: a replica of a run, or the service (run 0)."""

    run: int
    task: str

    @property
    def filename(self) -> str:
        return f"{self.run}.{self.task}.jsonl"

    @property
    def name(self) -> str:
        """As a LogSummary names it."""
        return f"{self.run}/{self.task}"


SERVICE = Stream(0, SERVICE_TASK)
LOST = Stream(0, "")
"""Stands where the index was damaged and nothing says whose line was there."""


class Record(NamedTuple):
    """Where one line lies. `stream` None: the record is damaged. `sure`: it has a check, and the check is right;
    records of the first version have none."""

    stream: Stream | None
    offset: int
    length: int
    sure: bool = True


def stream_of(path: Path) -> Stream | None:
    """Whose file this is; None for one that is no stream's."""
    run, _, task = path.name.removesuffix(".jsonl").partition(".")
    if not run.isdecimal():
        return None
    stream = Stream(int(run), task)
    try:
        return stream if stream == SERVICE or Task.parse(task) else None
    except ValueError:
        return None


def packed(stream: Stream, offset: int, length: int) -> bytes:
    if stream == LOST:
        run, kind, number, offset, length = 0, _NOBODY, 0, 0, 0
    elif stream == SERVICE:
        run, kind, number = 0, 0, 0
    else:
        task = Task.parse(stream.task)
        run, kind, number = stream.run, _KINDS.index(task.type), task.index
    return _RECORD.pack(run, kind, _check(run, kind, number, offset, length), number, offset, length)


def records(index: Path, skip: int) -> Iterator[Record]:
    """The whole records of an index from the one after `skip` on. No index: none."""
    try:
        file = index.open("rb")
    except FileNotFoundError:
        return
    streams: dict[tuple[int, int, int], Stream] = {}
    damaged = Record(None, 0, 0)
    with file:
        file.seek(skip * SIZE)
        while block := file.read(SIZE * _AT_ONCE):
            for run, kind, check, number, offset, length in _RECORD.iter_unpack(
                block[: len(block) - len(block) % SIZE]
            ):
                if (
                    check
                    and check != (31 * run + 37 * kind + 41 * number + 43 * offset + 47 * length) % 251 + 1
                ):
                    yield damaged
                    continue
                stream = streams.get((run, kind, number))
                if stream is None:
                    if kind == _NOBODY:
                        stream = LOST
                    elif kind >= len(_KINDS) or (kind == 0) != (run == 0):
                        yield damaged
                        continue
                    else:
                        name = SERVICE_TASK if kind == 0 else f"{_KINDS[kind]}-replica-{number}"
                        stream = Stream(run, name)
                    streams[run, kind, number] = stream
                yield Record(stream, offset, length, check != 0) if length or stream == LOST else damaged


def count(index: Path) -> int:
    """How many whole records there are."""
    try:
        return index.stat().st_size // SIZE
    except FileNotFoundError:
        return 0


def write_at(path: Path, offset: int, data: bytes | bytearray) -> None:
    """All of `data` at one place of a file, which is made if it is not there."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            done = os.pwrite(file, rest, offset)
            offset += done
            rest = rest[done:]
    finally:
        os.close(file)


def cut_to(path: Path, size: int) -> None:
    """Makes a file no larger than `size`; one that is not there, or smaller, stays as it is."""
    try:
        if path.stat().st_size > size:
            os.truncate(path, size)
    except FileNotFoundError:
        pass


def sync(*paths: Path) -> None:
    """Waits until the disk has these files, those of them that there are."""
    for path in paths:
        if path.exists():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _check(run: int, kind: int, number: int, offset: int, length: int) -> int:
    """Another one for every record that differs in one bit. `records` has the same, written out: it is called for
    every line of a log that is opened."""
    return (31 * run + 37 * kind + 41 * number + 43 * offset + 47 * length) % 251 + 1
