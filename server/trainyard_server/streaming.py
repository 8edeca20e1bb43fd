"""A job's log as it comes, and the changes of its states in between."""

import asyncio
from collections.abc import AsyncIterator

from starlette.concurrency import run_in_threadpool

from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_protocol.views import JobDetail, LogEntry, LogSummary
from trainyard_server.backend import Backend
from trainyard_server.conductor import Conductor
from trainyard_server.explaining import Explaining
from trainyard_server.jobs import known_job
from trainyard_server.log_filter import EVERYTHING, LogFilter, parse_filter
from trainyard_server.notify import job_topic, log_topic


class LogStreaming:
    """One reader's way through a job's log and its states, for as long as it likes."""

    def __init__(self, backend: Backend, conductor: Conductor, explaining: Explaining) -> None:
        self._backend = backend
        self._conductor = conductor
        self._explaining = explaining

    def check(self, project: str, job_id: str) -> int:
        """The key of the job that is to be followed. Raises NotFound."""
        with self._backend.store.read() as reader:
            return known_job(reader, project, job_id).key

    def filter(self, task: str, severity: str, since: str, search: str) -> LogFilter:
        """Raises InvalidArgument with everything that is wrong."""
        return parse_filter(task, severity, since, search, self._backend.clock())

    async def stream(
        self,
        project: str,
        job_id: str,
        *,
        key: int,
        after: int,
        follow: bool,
        wanted: LogFilter = EVERYTHING,
    ) -> AsyncIterator[LogEntry | JobDetail | LogSummary | None]:
        """Details, entries, and at the end the summary; None whenever nothing has happened for a while.

        A detail comes first and after each change of a state; the entries after `after` in their order. It
        reads the next lines only when the last were taken, so a slow reader costs a batch of memory.
        """
        backend = self._backend
        shown: JobDetail | None = None
        summary: LogSummary | None = None
        until: int | None = None
        now = asyncio.get_running_loop().time
        topics = frozenset({job_topic(key)})
        with backend.notifier.subscribe(job_topic(key), log_topic(key)) as news:
            await run_in_threadpool(self._conductor.write_service_lines, key)
            while True:
                # The state is read before the lines: a job that is over gets no more, so those are all.
                if shown is None or job_topic(key) in topics:
                    detail = await run_in_threadpool(self._explaining.detail, project, job_id, False)
                    if shown is None or _without_counts(detail) != _without_counts(shown):
                        yield detail
                    shown = detail
                    if shown.state in FINAL_JOB_STATES:
                        await run_in_threadpool(self._conductor.write_service_lines, key)
                if not follow or shown.state in FINAL_JOB_STATES:
                    # What comes from now on belongs to the next look: neither counted nor shown.
                    summary, until = await run_in_threadpool(self._explaining.summary, project, job_id)
                more, said = True, now()
                while more and not backend.notifier.closed:
                    batch = await run_in_threadpool(backend.logs.read, project, job_id, after, wanted, until)
                    for entry in batch.entries:
                        yield entry
                    after, more = batch.cursor, batch.more
                    if batch.entries:
                        said = now()
                    elif more and now() - said > backend.settings.ping_s:
                        said = now()
                        yield None
                if backend.notifier.closed:
                    return
                if summary is not None:
                    yield summary.model_copy(update={"state": shown.state})
                    return
                while (
                    not (topics := await news.wait(backend.settings.ping_s)) and not backend.notifier.closed
                ):
                    yield None


_WITHOUT = {
    "log_lines": 0,
    **dict.fromkeys(("first_step", "step", "steps", "step_at", "durable_step", "durable_at")),
}


def _without_counts(detail: JobDetail) -> JobDetail:
    """A detail without what changes with every line, to tell whether a state has changed."""
    runs = tuple(
        run.model_copy(update={"replicas": tuple(r.model_copy(update=_WITHOUT) for r in run.replicas)})
        for run in detail.runs
    )
    return detail.model_copy(update={"runs": runs})
