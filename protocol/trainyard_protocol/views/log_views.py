"""Answers about a job's log, as the server gives them page by page."""

from pydantic import Field

from trainyard_protocol.message import Wire


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
