"""A terminal that keeps what is written to it, lines of a log to write, and commands as a user types them."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from trainyard_cli.commands import tree
from trainyard_cli.main import run
from trainyard_protocol.answers.log_views import LogEntry

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


@dataclass
class CommandResult:
    code: int
    out: str
    err: str


Type = Callable[..., CommandResult]


def typed_words(capsys: pytest.CaptureFixture[str], *words: str) -> CommandResult:
    code = run(tree.trainyard, "trainyard", list(words))
    printed = capsys.readouterr()
    return CommandResult(code, printed.out, printed.err)
