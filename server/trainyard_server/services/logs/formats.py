"""Formats of log lines on the wire: server-sent events, compact arrays, and text."""

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

from trainyard_protocol.views import SERVICE_TASK, LogEntry
from trainyard_server.storage.logs.records import elements_of

KEEPALIVE = b": ping\n\n"

# Some readers of server-sent events treat these as line ends; JSON may escape them.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}


class LogFormat(StrEnum):
    """`each`: an event for each line; `batch`: an event for many lines; `text`: a line of text for each."""

    EACH = "each"
    BATCH = "batch"
    TEXT = "text"


def encode_entries(form: LogFormat, entries: tuple[LogEntry, ...], cursor: int) -> bytes:
    """The entries of a batch that ends at a cursor; empty for a batch without entries."""
    return _ENCODERS[form](entries, cursor) if entries else b""


def event(kind: str, data: str, ident: int | None = None) -> bytes:
    """One server-sent event. `data` is JSON without line ends."""
    number = "" if ident is None else f"id: {ident}\n"
    return f"event: {kind}\n{number}data: {data.translate(_LINE_ENDS)}\n\n".encode("utf-8", "replace")


def moved_on(cursor: int) -> bytes:
    """A batch without lines, from which a reader resumes behind this cursor."""
    return event("lines", "[]", cursor)


def compact(entries: Iterable[LogEntry]) -> list[list[Any]]:
    """`[cursor, run, task, number, time, stream, severity, text]` for each, with a last element `1` for a part of a
    longer line, `2` for a state of a progress bar that was overwritten."""
    return list(map(elements_of, entries))


def _each(entries: tuple[LogEntry, ...], _cursor: int) -> bytes:
    return b"".join(event("log", entry.model_dump_json(), entry.cursor) for entry in entries)


def _batch(entries: tuple[LogEntry, ...], cursor: int) -> bytes:
    lines = json.dumps(compact(entries), ensure_ascii=False, separators=(",", ":"))
    return event("lines", lines, cursor)


def _text(entries: tuple[LogEntry, ...], _cursor: int) -> bytes:
    return "".join(
        f"{e.time} {e.task if e.task == SERVICE_TASK else f'{e.run}/{e.task}'} {e.text}\n"
        for e in entries
        if not e.overwritten
    ).encode("utf-8", "replace")


_ENCODERS: Mapping[LogFormat, Callable[[tuple[LogEntry, ...], int], bytes]] = {
    LogFormat.EACH: _each,
    LogFormat.BATCH: _batch,
    LogFormat.TEXT: _text,
}
