"""How a job stands, for all who follow it: looked at once for all of them, and told to them at a measured pace."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_protocol.views import JobDetail
from trainyard_server.context import Backend
from trainyard_server.control.controller import Conductor
from trainyard_server.services.job_details import Explaining
from trainyard_server.services.logs.formats import event
from trainyard_server.storage.events.notifier import job_topic, log_topic

_PAUSE_S = 0.25  # from one look to the next: what comes in between those who follow read at once
_AT_ONCE = (
    8  # who are woken together: everything else on the event loop has its turn before the next of them are
)


@dataclass(frozen=True, slots=True)
class Standing:
    """A job at one moment. `job`: the event that says how it stands, the same object until that changes. `end`: the
    event that says what its log came to, and `until` the cursor of its last line: what comes later is not counted
    in it. `news_at`: the moment (time.monotonic) since when there may be lines that were not told of before."""

    job: bytes
    end: bytes | None
    until: int | None
    news_at: float


class Standings:
    """Looks at how jobs stand."""

    def __init__(self, backend: Backend, conductor: Conductor, explaining: Explaining) -> None:
        self._backend = backend
        self._conductor = conductor
        self._explaining = explaining

    def begin(self, key: int) -> None:
        """Brings the service's lines up to date."""
        self._conductor.write_service_lines(key)

    def whole(self, project: str, job_id: str, key: int) -> Standing:
        """For one who does not follow. Raises NotFound."""
        self.begin(key)
        detail = self._explaining.detail(project, job_id, False)
        return self._standing(project, job_id, key, detail, event("job", detail.model_dump_json()), over=True)

    def now(
        self, project: str, job_id: str, key: int, before: tuple[JobDetail, Standing] | None
    ) -> tuple[JobDetail, Standing]:
        """For all who follow. Raises NotFound."""
        # The state is read before the lines: a job that is over gets no more, so those are all.
        detail = self._explaining.detail(project, job_id, False)
        if before is not None and _without_counts(before[0]) == _without_counts(detail):
            job = before[1].job
        else:
            job = event("job", detail.model_dump_json())
        over = detail.state in FINAL_JOB_STATES
        return detail, self._standing(project, job_id, key, detail, job, over)

    def _standing(
        self, project: str, job_id: str, key: int, detail: JobDetail, job: bytes, over: bool
    ) -> Standing:
        end = until = None
        if over:
            if detail.state in FINAL_JOB_STATES:
                self.begin(key)
            # What comes from now on belongs to the next look: neither counted nor shown.
            summary, until = self._explaining.summary(project, job_id)
            end = event("end", summary.model_copy(update={"state": detail.state}).model_dump_json())
        return Standing(job, end, until, time.monotonic())


class JobFeed:
    """One job, on one event loop. `standing` changes with every news of the job; None before the first look."""

    def __init__(self, standings: Standings, backend: Backend, project: str, job_id: str, key: int) -> None:
        self._standings = standings
        self._backend = backend
        self._where = (project, job_id, key)
        self._waiting: dict[asyncio.Future[None], None] = {}  # a set in the order of arrival
        self._error: Exception | None = None
        self.over = False
        self.readers = 0
        self.standing: Standing | None = None
        self._task = asyncio.create_task(self._watch())

    async def after(self, known: Standing | None, timeout_s: float) -> Standing | None:
        """The standing that follows one; None when the time is over, or the server closes. Raises what the database or
        the disk did to whoever looked."""
        if self.standing is known and not self.over:
            told = asyncio.get_running_loop().create_future()
            self._waiting[told] = None
            try:
                async with asyncio.timeout(timeout_s):
                    await told
            except TimeoutError:
                return None
            finally:
                self._waiting.pop(told, None)
        if self._error is not None:
            raise self._error
        return None if self.over or self.standing is known else self.standing

    def close(self) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        project, job_id, key = self._where
        job, notifier, ping_s = job_topic(key), self._backend.notifier, self._backend.settings.ping_s
        known: tuple[JobDetail, Standing] | None = None
        topics = frozenset({job})
        try:
            with notifier.subscribe(job, log_topic(key)) as news:
                await run_in_threadpool(self._standings.begin, key)
                while not notifier.closed:
                    if known is None or job in topics:
                        known = await run_in_threadpool(self._standings.now, project, job_id, key, known)
                    else:
                        detail, last = known
                        known = detail, Standing(last.job, last.end, last.until, time.monotonic())
                    self.standing = known[1]
                    await self._tell()
                    while not (topics := await news.wait(ping_s)) and not notifier.closed:
                        pass
        except Exception as error:  # noqa: BLE001 - it belongs to those who follow, and they get it
            self._error = error
        finally:
            self.over = True
            for told in self._waiting:
                if not told.done():
                    told.set_result(None)

    async def _tell(self) -> None:
        """Wakes those who wait, spread over the pause: a few at a time, so that nothing else waits for them all."""
        waiting = list(self._waiting)
        parts = max(1, -(-len(waiting) // _AT_ONCE))
        for part in range(parts):
            for told in waiting[part::parts]:
                if not told.done():
                    told.set_result(None)
            await asyncio.sleep(_PAUSE_S / parts)


class LogFeeds:
    """The feeds of the jobs that somebody follows: one for each, as long as anybody does."""

    def __init__(self, standings: Standings, backend: Backend) -> None:
        self._standings = standings
        self._backend = backend
        self._feeds: dict[tuple[asyncio.AbstractEventLoop, int], JobFeed] = {}

    @contextmanager
    def followed(self, project: str, job_id: str, key: int) -> Iterator[JobFeed]:
        """To be called on the event loop that will wait for it."""
        where = (asyncio.get_running_loop(), key)
        feed = self._feeds.get(where)
        if feed is None or feed.over:
            feed = self._feeds[where] = JobFeed(self._standings, self._backend, project, job_id, key)
        feed.readers += 1
        try:
            yield feed
        finally:
            feed.readers -= 1
            if not feed.readers:
                feed.close()
                if self._feeds.get(where) is feed:
                    del self._feeds[where]


_WITHOUT = {
    "log_lines": 0,
    "gpus_used": (),
    **dict.fromkeys(("first_step", "step", "steps", "step_at", "durable_step", "durable_at")),
    **dict.fromkeys(("metrics", "cpu_used", "memory_used_bytes", "used_at")),
}


def _without_counts(detail: JobDetail) -> JobDetail:
    """A detail without what changes with every line, to tell whether a state has changed."""
    runs = tuple(
        run.model_copy(update={"replicas": tuple(r.model_copy(update=_WITHOUT) for r in run.replicas)})
        for run in detail.runs
    )
    return detail.model_copy(update={"runs": runs})
