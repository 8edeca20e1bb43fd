"""The log lines of all jobs, in files.

`<data_dir>/logs/<project>/<job>/` holds, for each replica of each run, `<run>.<task>.jsonl` with one line
of JSON for each log line, the service's own lines in `0.service.jsonl`, and `index`: fixed-size records
(stream, offset, length) in the order of arrival. The number of a line's record in the index, from 1, is its
cursor: the same for every reader, for ever.

A chunk is written to its stream first and to the index after. Whatever a crash leaves is repaired when the job
is next opened: a torn line or record is cut off, a whole line that the index lacks gets its record. So no
accepted line is lost or doubled, and a cursor that a reader has seen never means another line.
"""

import hashlib
import itertools
import json
import os
import struct
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from trainyard_protocol.cluster import TASK_TYPES, Task
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.sync import LogEnd, LogLine
from trainyard_protocol.views import SERVICE_TASK, LogEntry, severity

_RECORD = struct.Struct("<IBxHQI")  # run, kind of task, index of task, offset, length
_KINDS = (SERVICE_TASK, *TASK_TYPES)
_INDEX = "index"
_SHARDS = 16
_OPEN_JOBS_PER_SHARD = 32  # whose positions are kept in memory
_SCAN = 50_000  # records that one read looks at, at most
_BLOCK = 64 * 1024


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """One writer of a job's log: a replica of a run, or the service (run 0)."""

    run: int
    task: str

    @property
    def filename(self) -> str:
        return f"{self.run}.{self.task}.jsonl"


SERVICE = Stream(0, SERVICE_TASK)


class LogMismatch(Exception):
    """A replica's log is not what its agent says it should be. `have` is the number of lines here."""

    def __init__(self, have: int, end: LogEnd) -> None:
        if have != end.count:
            super().__init__(f"{have} lines are here, its agent counted {end.count}")
        else:
            super().__init__(f"its {have} lines do not have the digest that its agent computed")
        self.have = have


@dataclass(frozen=True, slots=True)
class Batch:
    """What one read found. The next read starts after `cursor`; `more`: it will find something at once."""

    entries: tuple[LogEntry, ...]
    cursor: int
    more: bool


class LogStore:
    """The logs under one directory. Safe to use from any thread of one process.

    With `durable`, a log that was verified survives a power failure; the end of this process it survives
    in any case.
    """

    def __init__(self, directory: Path, durable: bool = True) -> None:
        self._directory = directory
        self._durable = durable
        self._shards = tuple(_Shard() for _ in range(_SHARDS))
        directory.mkdir(parents=True, exist_ok=True)

    def append(
        self, project: str, job_id: str, stream: Stream, start: int, lines: Sequence[LogLine]
    ) -> tuple[int, int]:
        """Takes of lines `start`, `start + 1`, ... what continues the stream.

        Answers with the number of lines that the stream has now, and how many of them are new. Lines that
        it has already are passed over, a chunk that leaves a gap is passed over whole: repeating a chunk
        is harmless. After an OSError nothing of the chunk counts as written; it may be sent again.
        """
        with self._opened(project, job_id) as log:
            return log.append(stream, start, lines)

    def verify(self, project: str, job_id: str, stream: Stream, end: LogEnd) -> bool:
        """True if the stream is whole, False if lines are still to come; makes a whole one durable.

        Raises LogMismatch when no line that is still to come could make it right.
        """
        with self._opened(project, job_id) as log:
            whole = log.verify(stream, end)
            if whole and self._durable:
                log.sync(stream)
            return whole

    def read(
        self,
        project: str,
        job_id: str,
        after: int = 0,
        task: str = "",
        max_lines: int = 500,
        max_bytes: int = 2**20,
    ) -> Batch:
        """The lines after a cursor in the order of arrival, a bounded number of them; of one task if given."""
        with self._opened(project, job_id) as log:
            total = log.total
        # What the index has up to here never changes again: it is read without holding up the writers.
        return _read(log.directory, total, after, task, max_lines, max_bytes)

    def tail(self, project: str, job_id: str, stream: Stream, lines: int) -> tuple[str, ...]:
        """The text of the stream's last lines, the oldest first."""
        with self._opened(project, job_id) as log:
            return log.tail(stream, lines)

    def counts(self, project: str, job_id: str) -> dict[Stream, int]:
        """How many lines each stream of the job has."""
        with self._opened(project, job_id) as log:
            return {stream: position.count for stream, position in sorted(log.positions.items())}

    @contextmanager
    def _opened(self, project: str, job_id: str) -> Iterator["_JobLog"]:
        shard = self._shards[hash((project, job_id)) % _SHARDS]
        with shard.lock:
            log = shard.jobs.pop((project, job_id), None)
            if log is None:
                log = _JobLog(self._path(project, job_id))
            yield log
            # Not reached after an error: the job is then repaired when it is opened again.
            shard.jobs[project, job_id] = log
            if len(shard.jobs) > _OPEN_JOBS_PER_SHARD:
                del shard.jobs[next(iter(shard.jobs))]

    def _path(self, project: str, job_id: str) -> Path:
        for name in (project, job_id):
            if not name or name.startswith(".") or "/" in name or "\0" in name:
                raise InvalidArgument(f"{name!r} cannot name a project or a job.")
        return self._directory / project / job_id


class _Shard:
    """Some of the jobs, the longest unused first, and the lock that their writers hold."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: dict[tuple[str, str], _JobLog] = {}


@dataclass(slots=True)
class _Position:
    """Where a stream stands: its lines and bytes that the index has. `sha` is the running digest of the
    lines; None where they were written before this process knew the stream."""

    count: int = 0
    size: int = 0
    sha: "hashlib._Hash | None" = None


class _JobLog:
    """One job's directory. Opening it repairs it; only one thread at a time may use it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.total = 0
        self.positions: dict[Stream, _Position] = {}
        if directory.is_dir():
            self._repair()

    def append(self, stream: Stream, start: int, lines: Sequence[LogLine]) -> tuple[int, int]:
        position = self.positions.get(stream)
        if position is None:
            position = _Position(sha=hashlib.sha256())
        fresh = lines[position.count - start :] if start <= position.count else ()
        if not fresh:
            return position.count, 0
        self.directory.mkdir(parents=True, exist_ok=True)
        data, records = bytearray(), bytearray()
        for number, line in enumerate(fresh, position.count):
            encoded = _encode(number, line)
            records += _record(stream, position.size + len(data), len(encoded))
            data += encoded
        _write(self.directory / stream.filename, data)
        _write(self.directory / _INDEX, records)
        position.count += len(fresh)
        position.size += len(data)
        if position.sha is not None:
            for line in fresh:
                position.sha.update(_digested(line))
        self.positions[stream] = position
        self.total += len(fresh)
        return position.count, len(fresh)

    def verify(self, stream: Stream, end: LogEnd) -> bool:
        position = self.positions.get(stream, _Position(sha=hashlib.sha256()))
        if position.count < end.count:
            return False
        if position.count > end.count:
            raise LogMismatch(position.count, end)
        if position.sha is None:
            position.sha = hashlib.sha256()
            for line in self._lines(stream):
                position.sha.update(_digested(line))
        if position.sha.hexdigest() != end.sha256:
            raise LogMismatch(position.count, end)
        return True

    def sync(self, stream: Stream) -> None:
        """Wait until the disk has the stream and the index."""
        for name in (stream.filename, _INDEX):
            if (self.directory / name).exists():
                _sync(self.directory / name)

    def tail(self, stream: Stream, lines: int) -> tuple[str, ...]:
        position = self.positions.get(stream)
        if position is None or lines <= 0:
            return ()
        with (self.directory / stream.filename).open("rb") as file:
            data, start = b"", position.size
            while start > 0 and data.count(b"\n") <= lines:
                block = min(start, _BLOCK)
                start -= block
                file.seek(start)
                data = file.read(block) + data
        return tuple(json.loads(line)["text"] for line in data.splitlines()[-lines:])

    def _lines(self, stream: Stream) -> Iterator[LogLine]:
        with (self.directory / stream.filename).open("rb") as file:
            for raw in file:
                yield LogLine.model_validate_json(raw)

    def _repair(self) -> None:
        """Cuts off what is torn and gives every whole line its record."""
        files = {}
        for path in self.directory.glob("*.jsonl"):
            run, _, task = path.name.removesuffix(".jsonl").partition(".")
            files[Stream(int(run), task)] = path.stat().st_size
        self._repair_index(files)
        for stream, size in sorted(files.items()):
            position = self.positions.setdefault(stream, _Position())
            if size > position.size:
                self._repair_stream(stream, position)
            if not position.count:
                position.sha = hashlib.sha256()

    def _repair_index(self, files: Mapping[Stream, int]) -> None:
        """Keeps the records up to the first that is torn or does not fit the stream's file."""
        index = self.directory / _INDEX
        if not index.exists():
            return
        for stream, offset, length in _records(index, 0):
            position = self.positions.setdefault(stream, _Position())
            if offset != position.size or not 0 < length <= files.get(stream, 0) - offset:
                break
            position.size += length
            position.count += 1
            self.total += 1
        if index.stat().st_size != self.total * _RECORD.size:
            os.truncate(index, self.total * _RECORD.size)

    def _repair_stream(self, stream: Stream, position: _Position) -> None:
        path = self.directory / stream.filename
        records = bytearray()
        with path.open("rb") as file:
            file.seek(position.size)
            for raw in file:
                if not _is_whole(raw, position.count):
                    break
                records += _record(stream, position.size, len(raw))
                position.size += len(raw)
                position.count += 1
                self.total += 1
        os.truncate(path, position.size)
        if records:
            _write(self.directory / _INDEX, records)


def _read(directory: Path, total: int, after: int, task: str, max_lines: int, max_bytes: int) -> Batch:
    if after >= total:
        return Batch((), after, more=False)
    entries: list[LogEntry] = []
    cursor, size = after, 0
    with ExitStack() as stack:
        files: dict[Stream, IO[bytes]] = {}
        records = _records(directory / _INDEX, after)
        for stream, offset, length in itertools.islice(records, min(total - after, _SCAN)):
            if not task or stream.task == task:
                if len(entries) >= max_lines or (entries and size + length > max_bytes):
                    break
                if stream not in files:
                    files[stream] = stack.enter_context((directory / stream.filename).open("rb"))
                files[stream].seek(offset)
                entries.append(_entry(cursor + 1, stream, files[stream].read(length)))
                size += length
            cursor += 1
    return Batch(tuple(entries), cursor, more=cursor < total)


def _entry(cursor: int, stream: Stream, raw: bytes) -> LogEntry:
    line = json.loads(raw)
    level = "INFO" if stream == SERVICE else severity(line["stream"], line["text"])
    return LogEntry(
        cursor=cursor,
        run=stream.run,
        task=stream.task,
        number=line["n"],
        time=line["time"],
        stream=line["stream"],
        severity=level,
        text=line["text"],
        partial=line.get("partial", False),
    )


def _encode(number: int, line: LogLine) -> bytes:
    data: dict[str, Any] = {"n": number, "time": line.time, "stream": line.stream, "text": line.text}
    if line.partial:
        data["partial"] = True
    return json.dumps(data).encode("ascii") + b"\n"


def _digested(line: LogLine) -> bytes:
    """What `sync.digest` hashes of one line."""
    return f"{line.stream} {line.text}\n".encode("utf-8", "surrogatepass")


def _is_whole(raw: bytes, number: int) -> bool:
    if not raw.endswith(b"\n"):
        return False
    try:
        return bool(json.loads(raw)["n"] == number)
    except (ValueError, KeyError, TypeError):
        return False


def _record(stream: Stream, offset: int, length: int) -> bytes:
    if stream == SERVICE:
        return _RECORD.pack(0, 0, 0, offset, length)
    task = Task.parse(stream.task)
    return _RECORD.pack(stream.run, _KINDS.index(task.type), task.index, offset, length)


def _records(index: Path, skip: int) -> Iterator[tuple[Stream, int, int]]:
    """The whole records of an index from the one after `skip` on; ends before one that makes no sense."""
    streams: dict[tuple[int, int, int], Stream] = {}
    with index.open("rb") as file:
        file.seek(skip * _RECORD.size)
        while block := file.read(_RECORD.size * 1024):
            whole = len(block) - len(block) % _RECORD.size
            for run, kind, number, offset, length in _RECORD.iter_unpack(block[:whole]):
                stream = streams.get((run, kind, number))
                if stream is None:
                    if kind >= len(_KINDS):
                        return
                    name = SERVICE_TASK if kind == 0 else f"{_KINDS[kind]}-replica-{number}"
                    stream = streams[run, kind, number] = Stream(run, name)
                yield stream, offset, length


def _write(path: Path, data: bytes | bytearray) -> None:
    with path.open("ab") as file:
        file.write(data)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
