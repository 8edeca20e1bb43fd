"""Reader of a replica's log.jsonl, by line number while it grows."""

import json
import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from trainyard_agent.host.files import DamagedFile, read_json
from trainyard_agent.runtimes.base import GONE, LogSlice
from trainyard_agent.runtimes.supervisor import CUT
from trainyard_protocol.wire.logs import LogLine

DAMAGED = "(this line was damaged on the disk of its machine)"

LOG, DONE = "log.jsonl", "done.json"

_NOTHING = LogSlice((), complete=False)
_OPENED = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_OFFSETS = 8
_STREAMS = ("stdout", "stderr")
_EPOCH = "1970-01-01T00:00:00Z"


class LogFile:
    """A log file. A line counts once its newline is written; no file: no lines. Nor are there any in what somebody has
    put in the place of the file that was read first. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._name = str(path)
        self._ends = (str(path.with_name(DONE)), str(path.with_name(CUT)))
        self._lock = threading.Lock()  # the shipper and the stall monitor read it
        self._number = 0  # of the file, once it was read
        self._offsets = {0: 0}
        """Byte offsets of some lines, by number: those at which the next reads will start."""

    def read(self, start: int, max_lines: int, max_bytes: int) -> tuple[LogLine, ...]:
        """Lines `start`, `start + 1`, ...: at least one if there is one, then up to the limits."""
        with self._lock:
            return self._read(start, max_lines, max_bytes)

    def _read(self, start: int, max_lines: int, max_bytes: int) -> tuple[LogLine, ...]:
        number = max(cached for cached in self._offsets if cached <= start)
        try:
            if number == start and os.stat(self._name).st_size <= self._offsets[start]:  # noqa: PTH116
                return ()
            with open(self._name, "rb", opener=_opened) as file:
                if not self._is_own(os.fstat(file.fileno())):
                    return ()
                offset = file.seek(self._offsets[number])
                while number < start and (raw := file.readline()).endswith(b"\n"):
                    number, offset = number + 1, offset + len(raw)
                self._cache_offset(number, offset)
                block = file.read(max_bytes) if number == start else b""
                if number == start and b"\n" not in block:
                    block += file.readline()
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError:
            if stat.S_ISREG(os.lstat(self._name).st_mode):
                raise
            return ()  # a link, or a socket
        raws = block.split(b"\n")[:-1][:max_lines]
        self._cache_offset(number + len(raws), offset + sum(map(len, raws)) + len(raws))
        return parse_lines(raws)

    def _is_own(self, status: os.stat_result) -> bool:
        """Whether it is the file that was read first."""
        self._number = self._number or status.st_ino
        return stat.S_ISREG(status.st_mode) and status.st_ino == self._number

    def is_waiting(self, start: int) -> bool:
        """Whether there is no line `start` yet, of a log to which more may be written and that is not cut: three looks
        at the disk, for what most logs are most of the time."""
        offset = self._offsets.get(start)
        if offset is None or any(map(os.path.exists, self._ends)):
            return False
        try:
            return os.stat(self._name).st_size <= offset  # noqa: PTH116 - of every log, several times a second
        except FileNotFoundError:
            return False

    def slice(self, start: int, max_lines: int, max_bytes: int, done: Path) -> LogSlice:
        """Implements `Runtime.read_log`. The file `done` marks a log to which nothing more is written; CUT
        beside it, one that has reached its quota."""
        finished = done.exists()  # before reading: then all lines are there
        lines = self.read(start, max_lines, max_bytes)
        more = finished and bool(self.read(start + len(lines), 1, 0))
        complete = finished and not more
        cut = (complete or not lines) and done.with_name(CUT).exists()
        missing = _missing(done, start + len(lines), self._number) if complete else 0
        return LogSlice(lines, complete, cut, missing=missing)

    def _cache_offset(self, number: int, offset: int) -> None:
        self._offsets.pop(number, None)
        self._offsets[number] = offset
        while len(self._offsets) > _MAX_OFFSETS:
            self._offsets.pop(next(cached for cached in self._offsets if cached))


class RunLogs:
    """The logs of runs, as RUN/TASK/log.jsonl below a directory; done.json beside one that is complete. Thread-safe."""

    def __init__(self, runs: Path) -> None:
        self._runs = runs
        self._files: dict[tuple[str, str], LogFile] = {}

    def read(self, run_id: str, task: str, start: int, max_lines: int, max_bytes: int) -> LogSlice:
        """Implements `Runtime.read_log`."""
        file = self._files.get((run_id, task))
        if file is not None and file.is_waiting(start):
            return _NOTHING
        directory = self._runs / run_id / task
        if not directory.is_dir():
            return GONE
        log = self._files.setdefault((run_id, task), LogFile(directory / LOG))
        return log.slice(start, max_lines, max_bytes, directory / DONE)

    def forget(self, run_id: str) -> None:
        """Forget the files of a run that is removed."""
        self._files = {key: log for key, log in self._files.items() if key[0] != run_id}


def _opened(path: str, _flags: int) -> int:
    """Open a log for reading: no link, and no pipe that waits for a writer."""
    return os.open(path, _OPENED)


def _missing(done: Path, count: int, file: int) -> int | None:
    """Lines that a log of `count` lines lacks, as whoever wrote it noted at its end. `file` is the number of the file
    that they were read from; 0: of none."""
    try:
        note = read_json(done) or {}
    except DamagedFile:
        return None
    if file and note.get("file", file) != file:
        return None
    written = note.get("lines")
    if isinstance(written, int):
        return max(0, written - count)
    return None if note else 0  # it tells what was lost, with all that was not written yet


def parse_lines(raws: Sequence[bytes]) -> tuple[LogLine, ...]:
    """The lines, parsed together; a replacement for each damaged one, so that later lines keep their numbers."""
    try:
        lines = tuple([LogLine(**fields) for fields in json.loads(b"[%s]" % b",".join(raws))])
        "".join([line.text for line in lines]).encode()  # no half of a surrogate pair
    except (ValueError, TypeError, RecursionError):
        return tuple(map(_line, raws))
    are_whole = len(lines) == len(raws) and all(map(_is_whole, lines))
    return lines if are_whole else tuple(map(_line, raws))


def _is_whole(line: LogLine) -> bool:
    time, stream, _, partial, overwritten, _ = line
    return stream in _STREAMS and time.__class__ is str and partial.__class__ is overwritten.__class__ is bool


def _line(raw: bytes) -> LogLine:
    try:
        line = LogLine.parse(json.loads(raw))
        line.text.encode()
    except (ValueError, RecursionError):
        return LogLine(time=_EPOCH, stream="stderr", text=DAMAGED)
    return line
