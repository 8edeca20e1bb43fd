"""Conversion of logs of the version before: a file of JSON lines for each stream, and an index of their places.

`<run>.<task>.jsonl` holds a line of JSON for each log line, and `index` a record for each line in the order of arrival.
The first version wrote neither a cursor (`c`) into its lines nor a check into its records.
"""

import json
import math
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from trainyard_protocol.job.cluster import TASK_TYPES
from trainyard_protocol.lines.severity import SeverityReader
from trainyard_protocol.wire.logs import LogLine
from trainyard_server.storage.files import sync
from trainyard_server.storage.logs.records import DAMAGED, UNKNOWN_TIME, encode, log_entry
from trainyard_server.storage.streams import SERVICE, Stream

SEGMENT = "segment"

_RECORD = struct.Struct("<IBBHQI")  # run, kind of task, check, index of task, offset, length
_KINDS = (SERVICE.task, *TASK_TYPES)
_LOST = 255  # the kind of a record whose line was lost
_DAMAGED = LogLine(time=UNKNOWN_TIME, stream="stderr", text=DAMAGED)


def is_old(directory: Path) -> bool:
    """Whether a job's directory has a log of the version before, not converted yet."""
    return not (directory / SEGMENT).exists() and any(directory.glob("*.jsonl"))


def convert(directory: Path) -> None:
    """Replace the log of the version before by a segment, whole or not at all. Must be called under the lock.

    Every line keeps its cursor and its number; a damaged one becomes a line that says so. Raises OSError.
    """
    if is_old(directory):
        new = directory / f"{SEGMENT}.new"
        severities: dict[Stream, SeverityReader] = {}
        with new.open("wb") as file:
            for cursor, stream, number, line in _old_lines(directory):
                reader = severities.setdefault(stream, SeverityReader())
                file.write(encode(log_entry(cursor, stream, number, line, reader)))
        sync(new)
        new.rename(directory / SEGMENT)
        sync(directory)
    with suppress(OSError):  # another attempt follows when the log is opened the next time
        for path in (*directory.glob("*.jsonl"), directory / "index"):
            path.unlink(missing_ok=True)


def _old_lines(directory: Path) -> Iterator[tuple[int, Stream, int, LogLine]]:
    """Cursor, stream, number and line: first those of the index as far as it is intact, then the others, by the cursor
    that they know. What is no line there is left out."""
    cursor = 0
    with ExitStack() as stack:
        files = {}
        for path in sorted(directory.glob("[0-9]*.*.jsonl")):
            run, _, task = path.stem.partition(".")
            files[Stream(int(run), task)] = stack.enter_context(path.open("rb"))
        counts = dict.fromkeys(files, 0)
        for cursor, (stream, length) in enumerate(_old_index(directory / "index"), 1):
            if stream in files:
                _, _, line = _parse(files[stream].read(length))
                yield cursor, stream, counts[stream], line
                counts[stream] += 1
        rest = [(*_parse(raw), stream) for stream, file in files.items() for raw in file]
        for known, number, line, stream in sorted(rest, key=lambda one: (one[0], one[2].time, one[1])):
            if number >= 0:
                cursor = max(cursor + 1, int(known) if math.isfinite(known) else 0)
                yield cursor, stream, number, line


def _old_index(path: Path) -> Iterator[tuple[Stream, int]]:
    """Stream and length of each line up to the first damaged record."""
    ends: dict[Stream, int] = {}
    data = path.read_bytes() if path.exists() else b""
    for run, kind, check, task, offset, length in _RECORD.iter_unpack(
        data[: len(data) // _RECORD.size * _RECORD.size]
    ):
        if check not in (0, (31 * run + 37 * kind + 41 * task + 43 * offset + 47 * length) % 251 + 1):
            return
        if kind != _LOST and (kind >= len(_KINDS) or not length):
            return
        stream = Stream(run, f"{_KINDS[kind]}-replica-{task}" if 0 < kind < _LOST else SERVICE.task)
        if kind != _LOST and offset != ends.get(stream, 0):
            return
        ends[stream] = offset + length
        yield Stream(0, "") if kind == _LOST else stream, length


def _parse(raw: bytes) -> tuple[float, int, LogLine]:
    """Cursor (infinity if the line does not know it), number and line; number -1 if the line is damaged."""
    try:
        data = json.loads(raw) if raw.endswith(b"\n") else {}
        return float(data.get("c", math.inf)), int(data["n"]), LogLine.parse(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return math.inf, -1, _DAMAGED
