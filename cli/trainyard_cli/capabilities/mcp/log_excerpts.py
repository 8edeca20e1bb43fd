"""Excerpts of logs: of a failure the lines that lead to its cause and the errors before, else the last lines."""

from collections.abc import Sequence
from dataclasses import replace

from trainyard_cli.capabilities.mcp.answers import LogExcerpt, LogLineAnswer
from trainyard_cli.capabilities.mcp.job_answers import failure_of
from trainyard_cli.capabilities.mcp.program_text import cut
from trainyard_cli.client import Client, LogQuery
from trainyard_protocol.answers.log_views import LogEntry, LogPageView
from trainyard_protocol.states import JobState

MOST_LINES = 200
_MOST_CHARACTERS = 16_000
_ERRORS = 10
_AFTER_CAUSE = 5


def around_failure(client: Client, job: str, limit: int) -> LogExcerpt:
    """The lines of the replica that failed first, up to its cause and a few after it, and the errors before those
    lines; of a job that has not failed its last lines."""
    detail = client.detail(job)
    verdict = detail.verdict if detail.state is JobState.FAILED else None
    if verdict is None or not verdict.replica:
        return _excerpt(job, client.log_page(job, limit=limit)).model_copy(update={"state": str(detail.state)})
    query = LogQuery(task=verdict.replica)
    cause = verdict.cause_cursor
    page = client.log_page(job, query=query, before=None if cause is None else cause + 1, limit=limit)
    following = page if cause is None else client.log_page(job, query=query, after=cause, limit=_AFTER_CAUSE)
    entries = [*_entries(page), *(_entries(following) if cause is not None else ())]
    lines = _bounded(_lines(entries), newest=True)
    first = lines[0].cursor if lines else page.first
    errors = client.log_page(job, query=replace(query, severity="ERROR"), before=max(1, first), limit=_ERRORS)
    return LogExcerpt(
        job=job,
        state=str(detail.state),
        failure=failure_of(detail),
        errors=_lines(_entries(errors)),
        lines=lines,
        earlier=first if first > 1 else None,
        later=following.last,
        at_end=not following.later,
    )


def page(client: Client, job: str, query: LogQuery, *, before: int | None, after: int | None, limit: int) -> LogExcerpt:
    """The first lines after a cursor, or the last ones before one; with neither the last lines."""
    view = client.log_page(job, query=query, before=before, after=after, limit=limit)
    return _excerpt(job, view, newest=after is None)


def _excerpt(job: str, view: LogPageView, *, newest: bool = True) -> LogExcerpt:
    """The page as far as it fits: its last lines, or without `newest` its first."""
    every = _lines(_entries(view))
    lines = _bounded(every, newest=newest)
    left_out = len(lines) < len(every)
    first = lines[0].cursor if left_out and newest else view.first
    last = lines[-1].cursor if left_out and not newest else view.last
    return LogExcerpt(
        job=job,
        lines=lines,
        earlier=first if first > 1 else None,
        later=last,
        at_end=not (view.later or (left_out and not newest)),
    )


def _entries(view: LogPageView) -> list[LogEntry]:
    return [LogEntry.of_array(line) for line in view.lines]


def _lines(entries: Sequence[LogEntry]) -> list[LogLineAnswer]:
    """The lines without the states of progress bars that were overwritten."""
    return [
        LogLineAnswer(
            cursor=entry.cursor,
            time=entry.time,
            run=entry.run,
            replica=entry.task,
            severity=entry.severity,
            text=cut(entry.text),
        )
        for entry in entries
        if not entry.overwritten
    ]


def _bounded(lines: list[LogLineAnswer], *, newest: bool) -> list[LogLineAnswer]:
    """The lines that fit into an answer: the last ones, or without `newest` the first."""
    kept: list[LogLineAnswer] = []
    left = _MOST_CHARACTERS
    for line in reversed(lines) if newest else lines:
        left -= len(line.text)
        if left < 0:
            break
        kept.append(line)
    return kept[::-1] if newest else kept


def text(excerpt: LogExcerpt) -> list[str]:
    """The lines as text, oldest first."""
    rows = [*excerpt.errors, *excerpt.lines]
    shown = [f"{line.cursor} {line.time[11:19]} {line.replica} {line.severity} {line.text}" for line in rows]
    if excerpt.errors:
        shown.insert(len(excerpt.errors), "...")
    return shown
