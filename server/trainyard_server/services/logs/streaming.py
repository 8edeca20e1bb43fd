"""A job's log as it comes, and the changes of its states in between."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial

from trainyard_server.context import Backend
from trainyard_server.services.jobs import known_job
from trainyard_server.services.logs.batches import LogShares, Wanted
from trainyard_server.services.logs.executors import LogThreads
from trainyard_server.services.logs.followers import LogFeeds, Standing, Standings
from trainyard_server.services.logs.formats import KEEPALIVE, Form, moved_on
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter, parse_filter

_TELL_S = 1.0  # so often at least a reader whose filter finds nothing is told how far it has come


class LogStreaming:
    """Each reader's way through a job's log and its states, for as long as it likes. What several of them want at
    the same time is read once, and encoded once."""

    def __init__(self, backend: Backend, standings: Standings, threads: LogThreads) -> None:
        self._backend = backend
        self._standings = standings
        self._threads = threads
        self._feeds = LogFeeds(standings, backend)
        self._shares = LogShares(backend.logs, threads)

    def check(self, project: str, job_id: str) -> int:
        """The key of the job that is to be followed. Raises NotFound."""
        with self._backend.store.read() as reader:
            return known_job(reader, project, job_id).key

    def filter(
        self, tasks: Sequence[str], severity: str, since: str, search: str, run: int | None = None
    ) -> LogFilter:
        """Raises InvalidArgument with everything that is wrong."""
        return parse_filter(tasks, severity, since, search, self._backend.clock(), run)

    async def stream(
        self,
        project: str,
        job_id: str,
        *,
        key: int,
        after: int,
        follow: bool,
        wanted: LogFilter = EVERYTHING,
        form: Form = Form.EACH,
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events: how the job stands, at first and after each change of a state; the lines after `after` in
        their order; at the end the summary. A comment whenever nothing has happened for a while.

        It reads the next lines only when the last were taken, so a slow reader costs a batch of memory.
        """
        wanted_next = Wanted(project, job_id, after, None, wanted, form)
        reader = _Reader(self._shares, self._backend, wanted_next, together=follow)
        if not follow:
            whole = await self._threads.run(partial(self._standings.whole, project, job_id, key))
            async for part in _told(reader, whole, b""):
                yield part
            return
        with self._feeds.followed(project, job_id, key) as feed:
            standing: Standing | None = None
            job = b""
            while not (feed.over or self._backend.notifier.closed):
                following = await feed.after(standing, self._backend.settings.ping_s)
                if following is None:
                    if not feed.over:
                        yield KEEPALIVE
                    continue
                standing = following
                async for part in _told(reader, standing, job):
                    yield part
                job = standing.job
                if standing.end is not None:
                    return


async def _told(reader: "_Reader", standing: Standing, job: bytes) -> AsyncIterator[bytes]:
    """What a reader that knows of `job` is told of a standing."""
    if standing.job is not job:
        yield standing.job
    async for part in reader.lines(standing):
        yield part
    if standing.end is not None and not reader.closed:
        yield standing.end


class _Reader:
    """How far one reader has come; `together` with all others who follow the job."""

    def __init__(self, shares: LogShares, backend: Backend, wanted: Wanted, *, together: bool) -> None:
        self._shares = shares
        self._together = together
        self._notifier = backend.notifier
        self._ping_s = backend.settings.ping_s
        self._wanted = wanted
        self._behind = True
        self._said = time.monotonic()

    @property
    def closed(self) -> bool:
        return self._notifier.closed

    async def lines(self, standing: Standing) -> AsyncIterator[bytes]:
        """Those that there were at a standing, and perhaps some more, if it has no `until`."""
        until = standing.until
        while not self.closed and (until is None or self._wanted.after < until):
            wanted = self._wanted._replace(until=until)
            if self._together:
                share = await self._shares.next(wanted, standing.news_at, behind=self._behind)
            else:
                share = await self._shares.alone(wanted)
            moved = share.cursor > wanted.after
            self._wanted = wanted._replace(after=share.cursor)
            self._behind = share.more
            silent_s = time.monotonic() - self._said
            if share.data:
                yield self._say(share.data)
            elif moved and wanted.form is Form.BATCH and silent_s >= _TELL_S:
                yield self._say(moved_on(share.cursor))
            elif moved and silent_s >= self._ping_s:
                yield self._say(KEEPALIVE)
            if not moved or not (share.more or share.as_of < standing.news_at):
                return

    def _say(self, part: bytes) -> bytes:
        self._said = time.monotonic()
        return part
