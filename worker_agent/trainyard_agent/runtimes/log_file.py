"""Reader of a replica's log.jsonl, by line number while it grows; repair of its last line."""

import threading
from pathlib import Path

from pydantic import ValidationError

from trainyard_agent.runtimes.base import LogSlice
from trainyard_agent.runtimes.supervisor import CUT
from trainyard_protocol.sync import LogLine

DAMAGED = "(this line was damaged on the disk of its machine)"

_MAX_OFFSETS = 8
_EPOCH = "1970-01-01T00:00:00Z"


class LogFile:
    """A log file. A line counts once its newline is written; no file: no lines. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # the shipper and the stall monitor read it
        self._offsets = {0: 0}
        """Byte offsets of some lines, by number: those at which the next reads will start."""

    def read(self, start: int, max_lines: int, max_bytes: int) -> tuple[LogLine, ...]:
        """Lines `start`, `start + 1`, ...: at least one if there is one, then up to the limits."""
        with self._lock:
            return self._read(start, max_lines, max_bytes)

    def _read(self, start: int, max_lines: int, max_bytes: int) -> tuple[LogLine, ...]:
        lines: list[LogLine] = []
        number = max(cached for cached in self._offsets if cached <= start)
        try:
            with self._path.open("rb") as file:
                offset = file.seek(self._offsets[number])
                for raw in file:
                    if not raw.endswith(b"\n"):
                        break
                    if number >= start:
                        max_bytes -= len(raw)
                        if lines and (max_bytes < 0 or len(lines) >= max_lines):
                            break
                        lines.append(_line(raw))
                    number += 1
                    offset += len(raw)
                    if number == start:
                        self._cache_offset(number, offset)
        except FileNotFoundError:
            return ()
        self._cache_offset(number, offset)
        return tuple(lines)

    def slice(self, start: int, max_lines: int, max_bytes: int, done: Path) -> LogSlice:
        """As `Runtime.read_log`. The file `done` marks a log to which nothing more is written; CUT beside it, one that
        has reached its quota."""
        finished = done.exists()  # before reading: then all lines are there
        lines = self.read(start, max_lines, max_bytes)
        more = finished and bool(self.read(start + len(lines), 1, 0))
        complete = finished and not more
        return LogSlice(lines, complete, cut=(complete or not lines) and done.with_name(CUT).exists())

    def _cache_offset(self, number: int, offset: int) -> None:
        self._offsets.pop(number, None)
        self._offsets[number] = offset
        while len(self._offsets) > _MAX_OFFSETS:
            self._offsets.pop(next(cached for cached in self._offsets if cached))


def _line(raw: bytes) -> LogLine:
    """The line; a replacement for a damaged one, so that later lines keep their numbers."""
    try:
        return LogLine.model_validate_json(raw)
    except ValidationError:
        return LogLine(time=_EPOCH, stream="stderr", text=DAMAGED)


def truncate_torn_line(path: Path) -> int:
    """Remove an incomplete last line. Returns the number of lines; 0 if there is no file."""
    count = whole = 0
    try:
        with path.open("r+b") as file:
            for raw in file:
                if raw.endswith(b"\n"):
                    count, whole = count + 1, whole + len(raw)
            file.truncate(whole)
    except FileNotFoundError:
        return 0
    return count
