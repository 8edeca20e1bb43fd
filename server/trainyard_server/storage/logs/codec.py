"""One line of a log as it lies in its stream's file: a line of JSON, ASCII alone, that says which one it is."""

import json
from datetime import datetime
from typing import Any

from trainyard_protocol.sync import LogLine
from trainyard_protocol.views import LogEntry, severity
from trainyard_server.storage.logs.index import SERVICE, Stream

DAMAGED = "(this line was damaged on the disk of the server)"
"""Shown in the place of a line that cannot be read any more."""

_LONG_AGO = "1970-01-01T00:00:00Z"


def encode(number: int, cursor: int | None, line: LogLine) -> bytes:
    """Always the same bytes for the same line, so that one that was damaged can be put back into its place.
    `cursor` None: as the first version wrote it."""
    data: dict[str, Any] = {"n": number}
    if cursor is not None:
        data["c"] = cursor
    data |= {"time": line.time, "stream": line.stream, "text": line.text}
    if line.partial:
        data["partial"] = True
    return json.dumps(data).encode("ascii") + b"\n"


def decode(raw: bytes) -> dict[str, Any] | None:
    """What a line says; None where it is damaged."""
    if not raw.endswith(b"\n"):
        return None
    try:
        line = json.loads(raw)
        if isinstance(line["n"], int) and isinstance(line["text"], str):
            datetime.fromisoformat(line["time"])  # whoever reads it counts on a time
            return line if line["stream"] in ("stdout", "stderr") else None
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def entry(cursor: int, stream: Stream, line: dict[str, Any]) -> LogEntry:
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


def damaged_entry(cursor: int, stream: Stream, number: int) -> LogEntry:
    return LogEntry(
        cursor=cursor,
        run=stream.run,
        task=stream.task,
        number=number,
        time=_LONG_AGO,
        stream="stderr",
        severity="ERROR",
        text=DAMAGED,
    )
