"""A job's log by the page, in both directions, and as a whole: for those who look something up."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.views import LogEntry
from trainyard_server.context import Backend
from trainyard_server.services.logs.executors import LogThreads
from trainyard_server.services.logs.formats import Form, written
from trainyard_server.storage.logs.filter import LogFilter

MOST = 1000  # lines of a page

_FIRST_STEPS = 50  # reads that one search for a line makes


@dataclass(frozen=True, slots=True)
class LogPage:
    """Of the lines from `first` to `last` (cursors; `last` < `first`: none) those that are wanted. `earlier` and
    `later`: whether there are any lines before and behind."""

    entries: tuple[LogEntry, ...]
    first: int
    last: int
    earlier: bool
    later: bool


@dataclass(frozen=True, slots=True)
class Sought:
    """`cursor`: of the line that was sought; None: there is none up to `looked`. `more`: there may be one behind it."""

    cursor: int | None
    looked: int
    more: bool


class LogPaging:
    """Every call does a bounded amount of work: where a filter finds little it answers with what it has looked
    through, and the next call goes on from there."""

    def __init__(self, backend: Backend, threads: LogThreads) -> None:
        self._backend = backend
        self._threads = threads

    async def page(
        self, project: str, job_id: str, before: int | None, after: int | None, wanted: LogFilter, limit: int
    ) -> LogPage:
        """The last lines before a cursor, or the first after one; the last of all without either. Raises
        InvalidArgument."""
        wrong = []
        if not 1 <= limit <= MOST:
            wrong.append(Violation("limit", f"must be 1 to {MOST}; this is {limit}."))
        if before is not None and after is not None:
            wrong.append(Violation("before", "and after cannot be given both."))
        if before is not None and before < 1:
            wrong.append(Violation("before", f"must be 1 or more; this is {before}."))
        if after is not None and after < 0:
            wrong.append(Violation("after", f"must be 0 or more; this is {after}."))
        if wrong:
            raise InvalidArgument(wrong)
        read = partial(self._page, project, job_id, before, after, wanted, limit)
        return await self._threads.run(read)

    async def first(self, project: str, job_id: str, after: int, wanted: LogFilter) -> Sought:
        """The first wanted line after a cursor. Raises InvalidArgument."""
        if after < 0:
            raise InvalidArgument(Violation("after", f"must be 0 or more; this is {after}."))
        for _ in range(_FIRST_STEPS):
            read = partial(self._backend.logs.read, project, job_id, after, wanted, max_lines=1)
            batch = await self._threads.run(read)
            if batch.entries:
                return Sought(batch.entries[0].cursor, batch.entries[0].cursor, True)
            after = batch.cursor
            if not batch.more:
                return Sought(None, after, False)
        return Sought(None, after, True)

    async def text(self, project: str, job_id: str, wanted: LogFilter) -> AsyncIterator[bytes]:
        """All that there is at this moment, a line for each line: its time, its run and replica, its text."""
        logs = self._backend.logs
        _, until = await self._threads.run(partial(logs.standing, project, job_id))
        after, more = 0, True
        while more and after < until and not self._backend.notifier.closed:
            read = partial(self._text, project, job_id, after, wanted, until)
            data, after, more = await self._threads.run(read)
            if data:
                yield data

    def _text(
        self, project: str, job_id: str, after: int, wanted: LogFilter, until: int
    ) -> tuple[bytes, int, bool]:
        batch = self._backend.logs.read(project, job_id, after, wanted, until)
        return written(Form.TEXT, batch.entries, batch.cursor), batch.cursor, batch.more

    def _page(
        self, project: str, job_id: str, before: int | None, after: int | None, wanted: LogFilter, limit: int
    ) -> LogPage:
        logs = self._backend.logs
        if after is not None:
            batch = logs.read(project, job_id, after, wanted, max_lines=limit)
            return LogPage(batch.entries, after + 1, batch.cursor, after > 0, batch.more)
        page = logs.read_back(project, job_id, before, wanted, limit)
        _, total = logs.standing(project, job_id)
        return LogPage(page.entries, page.first, page.last, page.first > 1, page.last < total)
