"""A terminal that keeps what is written to it, and lines of a log to write."""

import io
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard_protocol.views.views import LogEntry

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def entry(text: str, task: str = "master-replica-0", at: float = 0, **changes: Any) -> LogEntry:
    """A line that was written so many seconds after noon."""
    given: dict[str, Any] = {"cursor": 1, "run": 1, "number": 0, "stream": "stdout", "severity": "INFO"}
    return LogEntry(task=task, time=after(at).isoformat(), text=text, **(given | changes))
