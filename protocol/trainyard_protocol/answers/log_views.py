"""Answers about a job's log, as the server gives them page by page."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from trainyard_protocol.message import Wire
from trainyard_protocol.states import JobState
from trainyard_protocol.wire.logs import Stream


class LogPageView(Wire):
    """Lines in their order. `first` and `last` are the cursors between which they lie."""

    lines: tuple[tuple[int | str, ...], ...] = Field(
        description="[cursor, run, task, number, time, stream, severity, text] of each, with a last element 1 for a "
        "part of a longer line, 2 for a state of a progress bar that was overwritten."
    )
    first: int
    last: int
    earlier: bool = Field(description="Whether there are lines before these.")
    later: bool = Field(description="Whether there are lines after these.")


class LogMatch(Wire):
    """The first line that passes a filter."""

    cursor: int | None = Field(description="Its cursor; null: there is none up to `looked`.")
    looked: int
    more: bool = Field(description="Whether the log goes on behind `looked`.")


SERVICE_TASK = "service"
"""The task name of the service's own lines in a job's log."""


class LogEntry(Wire):
    """A line of a job's log. `cursor` orders all lines of the job; a reader resumes after the last one that it has.

    `number` counts from 0 within one replica of one run. `partial`: the next line continues it; `overwritten`: a state
    of a progress bar, which the next line of its stream replaces; `routine`: a line of the service that the job's state
    or its end repeats.
    """

    cursor: int
    run: int
    task: str
    number: int
    time: str
    stream: Stream
    severity: str
    text: str
    partial: bool = False
    overwritten: bool = False
    routine: bool = False

    @classmethod
    def of_array(cls, elements: Sequence[Any]) -> "LogEntry":
        """The line in an array of the API: its fields up to the text, and the kind of the line. Raises ValueError,
        TypeError."""
        *values, text = elements[:8]
        kind = list(elements[8:])
        named = dict(zip(_BEFORE_TEXT, values, strict=True))
        return cls(**named, text=text, partial=kind == [1], overwritten=kind == [2], routine=kind == [3])


_BEFORE_TEXT = ("cursor", "run", "task", "number", "time", "stream", "severity")


class LogSummary(Wire):
    """Sent when a job's log is complete. For each `run/task`: the number of lines, the agent's digest of them
    (`sync.digest`), and where a quota cut the log off, the number of stored lines (`kept`)."""

    state: JobState
    lines: dict[str, int]
    sha256: dict[str, str] = Field(default_factory=dict)
    kept: dict[str, int] = Field(default_factory=dict)
