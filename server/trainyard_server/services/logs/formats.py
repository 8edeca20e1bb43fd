"""Formats of log lines on the wire: server-sent events, compact arrays, and text."""

import json
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from trainyard_protocol.answers.log_views import SERVICE_TASK, LogEntry
from trainyard_server.storage.logs.records import OVERWRITTEN

_to_json = json.JSONEncoder(separators=(",", ":")).encode

KEEPALIVE = b": ping\n\n"

# Some readers of server-sent events treat these as line ends; JSON may escape them.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


class LogFormat(StrEnum):
    """A format of server-sent events: `each`: one for each line; `batch`: one for many lines."""

    EACH = "each"
    BATCH = "batch"


def as_events(entries: Iterable[LogEntry]) -> bytes:
    """An event for each line."""
    return b"".join(event("log", entry.model_dump_json(), entry.cursor) for entry in entries)


def as_batch(arrays: Sequence[Sequence[Any]], cursor: int) -> bytes:
    """One event for lines that end at a cursor, in JSON of ASCII; empty without lines.

    `[cursor, run, task, number, time, stream, severity, text]` for each, with a last element `1` for a part of a
    longer line, `2` for a state of a progress bar that was overwritten, `3` for a routine line of the service."""
    return b"event: lines\nid: %d\ndata: %s\n\n" % (cursor, _to_json(arrays).encode("ascii")) if arrays else b""


def as_text(arrays: Iterable[Sequence[Any]]) -> bytes:
    """A line of text for each, with its time, run and replica; none for overwritten states of progress bars."""
    lines = []
    for _, run, task, _, time, _, _, text, *kind in arrays:
        if kind != [OVERWRITTEN]:
            lines.append(f"{time} {task if task == SERVICE_TASK else f'{run}/{task}'} {text}\n")
    return "".join(lines).encode("utf-8", "replace")


def event(kind: str, data: str, ident: int | None = None) -> bytes:
    """One server-sent event. `data` is JSON without line ends."""
    number = "" if ident is None else f"id: {ident}\n"
    return f"event: {kind}\n{number}data: {data.translate(_LINE_ENDS)}\n\n".encode("utf-8", "replace")


def moved_on(cursor: int) -> bytes:
    """A batch without lines, from which a reader resumes behind this cursor."""
    return event("lines", "[]", cursor)
