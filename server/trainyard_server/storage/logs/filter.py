"""Filters of a log: by replica, run, severity, time and text."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_protocol.answers.log_views import SERVICE_TASK
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.lines.progress_reader import may_report
from trainyard_protocol.lines.severity import SEVERITIES
from trainyard_server.domain.filters.time_bounds import time_bound
from trainyard_server.storage.streams import Stream

_SEARCH_LIMIT = 1000  # characters


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Conditions that a line must all meet; an empty one passes every line.

    `tasks`: of one of these replicas; `severity`: at least this one; `since`: printed then or later; `search`: has this
    text, in any case; `run`: of this run, or of the service; `reports`: may report progress.
    """

    tasks: frozenset[str] = frozenset()
    severity: str = ""
    since: datetime | None = None
    search: str = ""
    run: int | None = None
    reports: bool = False

    def passes_stream(self, stream: Stream) -> bool:
        """Whether lines of this stream can pass."""
        if self.tasks and stream.task not in self.tasks:
            return False
        return self.run is None or stream.run == self.run or stream.task == SERVICE_TASK

    def may_pass(self, raw: bytes) -> bool:
        """False only for a record whose text does not have `search`: a test without parsing."""
        search = self.search.casefold()
        if not search.isascii():
            return b"\\u" in raw
        return not search or b"\\" in raw or search.encode() in raw.lower()

    def passes_line(self, severity: str, text: str) -> bool:
        """Whether a line of a stream and time that pass can pass itself."""
        if self.severity and SEVERITIES.index(severity) < SEVERITIES.index(self.severity):
            return False
        if self.reports and not may_report(text):
            return False
        return not self.search or self.search.casefold() in text.casefold()


EVERYTHING = LogFilter()


def parse_filter(
    tasks: Sequence[str], severity: str, since: str, search: str, now: datetime, run: int | None = None
) -> LogFilter:
    """The filter that a request asks for. Raises InvalidArgument with all violations."""
    violations: list[Violation] = []
    tasks = [task for task in tasks if task]
    for task in tasks:
        if task != SERVICE_TASK:
            try:
                Task.parse(task)
            except ValueError as error:
                violations.append(Violation("task", f"{error}, or {SERVICE_TASK}"))
    if severity and severity.upper() not in SEVERITIES:
        expected = ", ".join(SEVERITIES)
        violations.append(Violation("severity", f"must be one of {expected}; this is {severity!r}."))
    start = time_bound("since", since, now, violations)
    if len(search) > _SEARCH_LIMIT:
        violations.append(Violation("search", f"may have {_SEARCH_LIMIT} characters; this has {len(search)}."))
    if violations:
        raise InvalidArgument(violations)
    return LogFilter(frozenset(tasks), severity.upper(), start, search, run)
