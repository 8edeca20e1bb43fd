"""A replica's log.jsonl: reading it by line number while it grows, and going on writing it."""

import threading
from pathlib import Path

from pydantic import ValidationError

from trainyard_agent.runtimes.base import LogSlice
from trainyard_agent.runtimes.process.supervisor import CUT
from trainyard_protocol.sync import LogLine

DAMAGED = "(this line was damaged on the disk of its machine)"

_REMEMBERED = 8
_LONG_AGO = "1970-01-01T00:00:00Z"


class LogFile:
    """A line that is not finished yet does not exist. No file: no lines. Safe to use from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # one reader sends the log, another watches it
        self._offsets = {0: 0}
        """Where some lines begin, by number: those that a reader who goes on, or asks again, starts with."""

    def read(self, start: int, max_lines: int, max_bytes: int) -> tuple[LogLine, ...]:
        """Lines `start`, `start + 1`, ...: at least one if there is one, then up to the limits."""
        with self._lock:
            return self._read(start, max_lines, max_bytes)

    def _read(self, start: int, max_lines: int, max_bytes: int) -> tuple[LogLine, ...]:
        lines: list[LogLine] = []
        number = max(known for known in self._offsets if known <= start)
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
                        self._remember(number, offset)
        except FileNotFoundError:
            return ()
        self._remember(number, offset)
        return tuple(lines)

    def slice(self, start: int, max_lines: int, max_bytes: int, done: Path) -> LogSlice:
        """As `Runtime.read_log`; `done` is the file that says that nothing more is written, and CUT beside it that
        something was not."""
        finished = done.exists()  # asked first: what is read after it is the rest
        lines = self.read(start, max_lines, max_bytes)
        more = finished and bool(self.read(start + len(lines), 1, 0))
        complete = finished and not more
        return LogSlice(lines, complete, cut=(complete or not lines) and done.with_name(CUT).exists())

    def _remember(self, number: int, offset: int) -> None:
        self._offsets.pop(number, None)
        self._offsets[number] = offset
        while len(self._offsets) > _REMEMBERED:
            self._offsets.pop(next(known for known in self._offsets if known))


def _line(raw: bytes) -> LogLine:
    """A line that is damaged keeps its number, and says so: those behind it must not wait for it for ever."""
    try:
        return LogLine.model_validate_json(raw)
    except ValidationError:
        return LogLine(time=_LONG_AGO, stream="stderr", text=DAMAGED)


def mend(path: Path) -> int:
    """Cut off a last line that was not written to its end; how many lines there are. No file: none."""
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
