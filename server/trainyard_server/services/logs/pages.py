"""Pages of a job's log in both directions, the search for one line, and the whole log as text."""

from collections.abc import AsyncIterator
from functools import partial

from trainyard_protocol.answers.log_views import LogMatch
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_server.context import Backend
from trainyard_server.services.logs.batches import LogExecutors
from trainyard_server.services.logs.formats import as_text
from trainyard_server.storage.logs.filter import LogFilter
from trainyard_server.storage.logs.store import ReadResult

MOST = 1000  # lines of a page

_TEXT_LINES = 5000  # that are read together for the whole log as text
_FIRST_STEPS = 50  # reads of one search for a line


class LogPages:
    """Every call does a bounded amount of work. A filter that passes few lines gives a short result; the next call goes
    on behind it."""

    def __init__(self, backend: Backend, threads: LogExecutors) -> None:
        self._backend = backend
        self._threads = threads

    async def page(
        self, project: str, job_id: str, before: int | None, after: int | None, log_filter: LogFilter, limit: int
    ) -> ReadResult:
        """The last lines before a cursor, or the first after one; the last of all without either. Raises
        InvalidArgument."""
        violations = []
        if not 1 <= limit <= MOST:
            violations.append(Violation("limit", f"must be 1 to {MOST}; this is {limit}."))
        if before is not None and after is not None:
            violations.append(Violation("before", "and after cannot be given both."))
        if before is not None and before < 1:
            violations.append(Violation("before", f"must be 1 or more; this is {before}."))
        if after is not None and after < 0:
            violations.append(Violation("after", f"must be 0 or more; this is {after}."))
        if violations:
            raise InvalidArgument(violations)
        logs = self._backend.logs
        if after is not None:
            read = partial(logs.read, project, job_id, after, log_filter, max_lines=limit)
        else:
            read = partial(logs.read_back, project, job_id, before, log_filter, max_lines=limit)
        return await self._threads.run(read)

    async def first(self, project: str, job_id: str, after: int, log_filter: LogFilter) -> LogMatch:
        """The first line after a cursor that passes a filter. Raises InvalidArgument."""
        if after < 0:
            raise InvalidArgument(Violation("after", f"must be 0 or more; this is {after}."))
        for _ in range(_FIRST_STEPS):
            read = partial(self._backend.logs.read, project, job_id, after, log_filter, max_lines=1)
            result = await self._threads.run(read)
            if result.entries:
                cursor = result.entries[0].cursor
                return LogMatch(cursor=cursor, looked=cursor, more=True)
            after = result.last
            if not result.more:
                return LogMatch(cursor=None, looked=after, more=False)
        return LogMatch(cursor=None, looked=after, more=True)

    async def text(self, project: str, job_id: str, log_filter: LogFilter) -> AsyncIterator[bytes]:
        """All lines that there are now as text, with time, run and replica."""
        logs = self._backend.logs
        _, until = await self._threads.run(partial(logs.extent, project, job_id))
        after = 0
        while after < until and not self._backend.notifier.closed:
            read = partial(self._text, project, job_id, after, log_filter, until)
            data, after = await self._threads.run(read)
            if data:
                yield data

    def _text(self, project: str, job_id: str, after: int, log_filter: LogFilter, until: int) -> tuple[bytes, int]:
        result = self._backend.logs.read(project, job_id, after, log_filter, until, _TEXT_LINES)
        return as_text(result.arrays), result.last
