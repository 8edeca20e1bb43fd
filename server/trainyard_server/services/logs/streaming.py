"""Server-sent events of a job: its log lines and the changes of its states."""

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial

from trainyard_server.context import Backend
from trainyard_server.services.jobs.known_jobs import known_job
from trainyard_server.services.logs.batches import LogBatches, LogExecutors, LogRequest
from trainyard_server.services.logs.formats import KEEPALIVE, LogFormat, moved_on
from trainyard_server.services.logs.job_status import JobStatus, JobStatusReader
from trainyard_server.storage.events.broadcaster import Broadcaster
from trainyard_server.storage.events.notifier import job_topic, log_topic
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter

_PAUSE_S = 0.03  # between two reads for one reader: a line and the end that follows it come apart
_CURSOR_EVERY_S = 1.0  # while a filter matches nothing, a client that asked for batches gets its cursor


class LogStreaming:
    """Streams of all jobs. Readers of the same job share the polls of its status, and the batches of its log."""

    def __init__(self, backend: Backend, statuses: JobStatusReader, executors: LogExecutors) -> None:
        self._backend = backend
        self._statuses = statuses
        self._executors = executors
        ping_s = backend.settings.ping_s
        self._broadcaster = Broadcaster[JobStatus](
            backend.notifier, ping_s, "A log stream was cut", pause_each_s=_PAUSE_S
        )
        self._batches = LogBatches(backend.logs, executors)

    def check(self, project: str, job_id: str) -> int:
        """The key of the job. Raises NotFound."""
        with self._backend.store.read() as reader:
            return known_job(reader, project, job_id).key

    async def stream(
        self,
        project: str,
        job_id: str,
        *,
        key: int,
        after: int,
        follow: bool,
        log_filter: LogFilter = EVERYTHING,
        form: LogFormat = LogFormat.EACH,
        with_lines: bool = True,
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events: the job, at first and after each change of a state; the lines after the cursor `after`;
        at the end the summary. A comment after `ping_s` without an event. Cut without the summary when the server
        shuts down or the status of the job cannot be read. Without `with_lines` no line is read or sent.

        The next lines are read only when the last ones were sent, so a slow client costs a batch of memory.
        """
        request = LogRequest(project, job_id, after, None, log_filter, form)
        reader = _Reader(self._batches, self._backend, request, shared=follow, with_lines=with_lines)
        if not follow:
            status = await self._executors.run(partial(self._statuses.once, project, job_id, key))
            async for part in _events(reader, status, b""):
                yield part
            return
        poll = partial(self._statuses.poll, project, job_id, key)
        job = b""
        async with aclosing(self._broadcaster.subscribe(key, poll, (job_topic(key), log_topic(key)))) as statuses:
            async for current in statuses:
                if current is None:
                    yield KEEPALIVE
                    continue
                async for part in _events(reader, current, job):
                    yield part
                job = current.job
                if current.end is not None:
                    return


async def _events(reader: "_Reader", status: JobStatus, job: bytes) -> AsyncIterator[bytes]:
    """The events of a status, for a client that has received `job`."""
    if status.job is not job:
        yield status.job
    async for part in reader.lines(status):
        yield part
    if status.end is not None and not reader.closed:
        yield status.end


class _Reader:
    """Position of one client in the log. `shared`: reads the batches that other followers of the job read; without
    `with_lines` it reads none."""

    def __init__(
        self, batches: LogBatches, backend: Backend, request: LogRequest, *, shared: bool, with_lines: bool
    ) -> None:
        self._batches = batches
        self._shared = shared
        self._with_lines = with_lines
        self._notifier = backend.notifier
        self._ping_s = backend.settings.ping_s
        self._request = request
        self._behind = True
        self._sent_at = time.monotonic()

    @property
    def closed(self) -> bool:
        return self._notifier.closed

    async def lines(self, status: JobStatus) -> AsyncIterator[bytes]:
        """All lines up to `status.until`; without it all that were there at the status, and maybe some more."""
        until = status.until
        while self._with_lines and not self.closed and (until is None or self._request.after < until):
            request = self._request._replace(until=until)
            if self._shared:
                batch = await self._batches.next(request, status.changed_at, behind=self._behind)
            else:
                batch = await self._batches.alone(request)
            moved = batch.cursor > request.after
            self._request = request._replace(after=batch.cursor)
            self._behind = batch.more
            silent_s = time.monotonic() - self._sent_at
            if batch.data:
                yield self._send(batch.data)
            elif moved and request.form is LogFormat.BATCH and silent_s >= _CURSOR_EVERY_S:
                yield self._send(moved_on(batch.cursor))
            elif moved and silent_s >= self._ping_s:
                yield self._send(KEEPALIVE)
            if not moved or not (batch.more or batch.as_of < status.changed_at):
                return

    def _send(self, part: bytes) -> bytes:
        self._sent_at = time.monotonic()
        return part
