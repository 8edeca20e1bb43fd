"""Which lines of a log a reader wants. Most others are passed over without being parsed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from trainyard_protocol.cluster import Task
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.moments import moment_of
from trainyard_protocol.views import SERVICE_TASK, SEVERITIES, LogEntry

_SEARCH_LIMIT = 1000  # characters
_STDOUT = b'"stream": "stdout"'  # quotes in a line's own text are escaped: this is the field alone
_TIME = re.compile(rb'\{"n": \d+, (?:"c": \d+, )?"time": "([^"\\]*)"')
# Without one of these a line on stdout says no severity above INFO; see `views.severity`.
_LOUD = re.compile(rb'NOTICE|WARN|ERROR|CRITICAL|FATAL|"text": "[WEF]\d{4} ', re.IGNORECASE)
_QUIET = SEVERITIES.index("INFO")


@dataclass(frozen=True, slots=True)
class LogFilter:
    """`tasks`: of these replicas alone; `severity`: at least this; `since`: not from before; `search`: with this in
    their text, whatever its case; `run`: of this run alone, and what the service says. Empty: all."""

    tasks: frozenset[str] = frozenset()
    severity: str = ""
    since: datetime | None = None
    search: str = ""
    run: int | None = None

    @property
    def reads(self) -> bool:
        """Whether it depends on what a line says."""
        return bool(self.severity or self.since or self.search)

    def streams(self, run: int, task: str) -> bool:
        """Whether any line of this stream may be wanted."""
        if self.tasks and task not in self.tasks:
            return False
        return self.run is None or run == self.run or task == SERVICE_TASK

    def maybe(self, raw: bytes) -> bool:
        """False only for a line that is surely not wanted: told from its bytes, without parsing them."""
        if self.search:
            wanted = self.search.casefold()
            if not wanted.isascii():
                if b"\\u" not in raw:
                    return False
            elif b"\\" not in raw and wanted.encode() not in raw.lower():
                return False
        loud = bool(self.severity) and SEVERITIES.index(self.severity) > _QUIET
        if loud and _STDOUT in raw and b"\\u" not in raw and not _LOUD.search(raw):
            return False
        if self.since is not None and (match := _TIME.match(raw)):
            return not _is_before(match[1].decode("ascii", "replace"), self.since)
        return True

    def wants(self, entry: LogEntry, damaged: bool = False) -> bool:
        """Of a damaged line nobody knows when it was written: it passes for any time."""
        if self.severity and SEVERITIES.index(entry.severity) < SEVERITIES.index(self.severity):
            return False
        if self.since is not None and not damaged and _is_before(entry.time, self.since):
            return False
        return self.search.casefold() in entry.text.casefold()


EVERYTHING = LogFilter()


def parse_filter(
    tasks: Sequence[str], severity: str, since: str, search: str, now: datetime, run: int | None = None
) -> LogFilter:
    """The filter that a request asks for. Raises InvalidArgument with everything that is wrong."""
    wrong = []
    moment = None
    tasks = [task for task in tasks if task]
    for task in tasks:
        if task != SERVICE_TASK:
            try:
                Task.parse(task)
            except ValueError as error:
                wrong.append(Violation("task", f"{error}, or {SERVICE_TASK}"))
    if severity and severity.upper() not in SEVERITIES:
        wrong.append(Violation("severity", f"must be one of {', '.join(SEVERITIES)}; this is {severity!r}."))
    if since:
        try:
            moment = moment_of(since, now)
        except ValueError as error:
            wrong.append(Violation("since", f"{error}."))
    if len(search) > _SEARCH_LIMIT:
        wrong.append(Violation("search", f"may have {_SEARCH_LIMIT} characters; this has {len(search)}."))
    if wrong:
        raise InvalidArgument(wrong)
    return LogFilter(frozenset(tasks), severity.upper(), moment, search, run)


def _is_before(time: str, since: datetime) -> bool:
    """False for a time that cannot be read: what is not known is shown."""
    try:
        moment = datetime.fromisoformat(time)
    except ValueError:
        return False
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) < since
