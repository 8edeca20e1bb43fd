"""The log lines of all jobs, in files that several processes may write and read at the same time.

`<data_dir>/logs/<project>/<job>/` holds, for each replica of each run, `<run>.<task>.jsonl` with one line
of JSON for each log line, the service's own lines in `0.service.jsonl`, and `index`: fixed-size records
(stream, offset, length) in the order of arrival. The number of a line's record in the index, from 1, is its
cursor: the same for every reader, for ever.

Writers take the lock of the job (`lock`, flock): in it a chunk is written to its stream first and to the index after.
What a writer that was killed has left is cut off by the next one; nobody was told that it was here. Readers
take no lock: what has a whole record in the index is there, and is never taken back.

What the disk has lost or changed keeps its place: the line is shown as damaged, the agent is asked for it again as long
as it has it, and `problems` names what is damaged until it is whole again.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.sync import LogEnd, LogLine
from trainyard_server.storage.file_lock import Held, LogBusy, held
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter
from trainyard_server.storage.logs.index import INDEX, SERVICE, Stream, sync
from trainyard_server.storage.logs.job_log import Appended, JobLog, LogMismatch
from trainyard_server.storage.logs.reader import (
    Batch,
    Damage,
    Page,
    objects,
    scan,
    scan_back,
    tail,
)

__all__ = [
    "SERVICE",
    "Appended",
    "Batch",
    "LogBusy",
    "LogFilter",
    "LogMismatch",
    "LogStore",
    "Page",
    "Stream",
]

_Found = TypeVar("_Found", Batch, Page)

_OPEN_JOBS = 512  # whose positions are kept in memory
_PROBLEMS = 1000  # that are remembered

logger = logging.getLogger(__name__)


class LogStore:
    """The logs under one directory. Safe to use from any thread of any process of this machine.

    With `durable`, a log that was verified survives a power failure; the end of a process it survives in any case.
    `write_wait_s` is how long a writer waits for another one; `read_wait_s` how long a reader that wants to repair
    something does, before it goes on without.
    """

    def __init__(
        self, directory: Path, durable: bool = True, write_wait_s: float = 10.0, read_wait_s: float = 0.2
    ) -> None:
        self._directory = directory
        self._durable = durable
        self._write_wait_s = write_wait_s
        self._read_wait_s = read_wait_s
        self._lock = Lock()
        self._jobs: OrderedDict[tuple[str, str], JobLog] = OrderedDict()
        self._problems: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        directory.mkdir(parents=True, exist_ok=True)

    def append(
        self,
        project: str,
        job_id: str,
        stream: Stream,
        start: int,
        lines: Sequence[LogLine],
        quota: int = 0,
    ) -> Appended:
        """Takes of lines `start`, `start + 1`, ... what continues the stream.

        Answers with the number of the line that the stream wants next, and how many are new. Lines that it has already
        are passed over, but for damaged ones, which are put back into their places; a chunk that leaves a gap is passed
        over whole: repeating a chunk is harmless. Of what would take the job's log over `quota` bytes nothing is
        kept (0: no quota; the service's own lines are always kept). After an OSError nothing of the chunk is promised;
        it may be sent again. LogBusy, one of them: another writer is in the way.
        """
        log = self._job(project, job_id)
        with self._held(log, self._write_wait_s, make=True) as lock:
            return log.append(lock, stream, start, lines, quota)

    def verify(self, project: str, job_id: str, stream: Stream, end: LogEnd) -> bool:
        """True if the stream is whole, False if lines are still to come; makes a whole one durable.

        Raises LogMismatch when no line that is still to come could make it right. Lines whose digest is wrong
        are asked for once more before that: see `next`.
        """
        log = self._job(project, job_id)
        with self._held(log, self._write_wait_s, make=True):
            whole = log.verify(stream, end)
            if whole and self._durable:
                sync(log.directory / stream.filename, log.directory / INDEX)
            return whole

    def next(self, project: str, job_id: str, stream: Stream) -> int:
        """The number of the line that the stream wants now: the first damaged one that may be sent again, or else the
        one after the last."""
        log = self._seen(project, job_id)
        with log.view:
            return log.next(stream)

    def read(
        self,
        project: str,
        job_id: str,
        after: int = 0,
        wanted: LogFilter = EVERYTHING,
        until: int | None = None,
        max_lines: int = 500,
        max_bytes: int = 2**20,
    ) -> Batch:
        """The lines after a cursor in the order of arrival that are wanted, a bounded number of them, up to the one at
        the cursor `until` if that is given. A filter that finds little looks at a bounded number as well, so that
        a batch may be empty and have more behind it.

        Waits for nobody: what is damaged is shown as such, also where it cannot be repaired now.
        """
        # What the index has up to here never changes again: it is read without holding up the writers.
        return self._looked(
            self._seen(project, job_id),
            lambda log: scan(
                log.directory, _least(log.total, until), after, wanted, max_lines, max_bytes, log.number
            ),
        )

    def read_back(
        self,
        project: str,
        job_id: str,
        before: int | None = None,
        wanted: LogFilter = EVERYTHING,
        max_lines: int = 500,
        max_bytes: int = 2**20,
    ) -> Page:
        """The last lines before a cursor, or of all that there are: like `read`, the other way round."""
        return self._looked(
            self._seen(project, job_id),
            lambda log: scan_back(log.directory, log.total, before, wanted, max_lines, max_bytes, log.number),
        )

    def tail(self, project: str, job_id: str, stream: Stream, lines: int) -> tuple[str, ...]:
        """The text of the stream's last lines, the oldest first; what can be read of them."""
        log = self._seen(project, job_id)
        with log.view:
            position = log.positions.get(stream)
            size = position.size if position is not None else 0
        return tail(log.directory / stream.filename, size, lines)

    def objects(self, project: str, job_id: str, stream: Stream) -> Iterator[LogLine]:
        """Those of the stream's lines that begin with a brace, in their order; what can be read of them. Writers do
        not wait for it."""
        start, end = 0, self.ends(project, job_id).get(stream, 0)
        while start < end:
            try:
                found, start = self.objects_from(project, job_id, stream, start, end)
            except OSError:
                return
            yield from found

    def objects_from(
        self, project: str, job_id: str, stream: Stream, start: int, end: int
    ) -> tuple[list[LogLine], int]:
        """As `objects`: no more of them than a few megabytes hold, and where the next ones lie. `start` is 0 or such a
        place, `end` is of `ends`. Raises OSError."""
        return objects(self._job(project, job_id).directory / stream.filename, start, end)

    def ends(self, project: str, job_id: str) -> dict[Stream, int]:
        """Where each stream of the job ends, in bytes: lines that come later lie behind."""
        log = self._seen(project, job_id)
        with log.view:
            return {stream: position.size for stream, position in sorted(log.positions.items())}

    def counts(self, project: str, job_id: str) -> dict[Stream, int]:
        """How many lines each stream of the job has."""
        return self.standing(project, job_id)[0]

    def standing(self, project: str, job_id: str) -> tuple[dict[Stream, int], int]:
        """How many lines each stream has, and the cursor of the last one of them all, at one moment."""
        log = self._seen(project, job_id)
        with log.view:
            return {stream: position.count for stream, position in sorted(log.positions.items())}, log.total

    def jobs(self) -> list[tuple[str, str]]:
        """The project and the name of every job that has a log."""
        return [
            (path.parent.name, path.name) for path in sorted(self._directory.glob("*/*")) if path.is_dir()
        ]

    def problems(self) -> list[tuple[str, str, str, str]]:
        """What is damaged, as far as it was met: project, job, file, and what is wrong with it."""
        with self._lock:
            return [(*where, what) for where, what in self._problems.items()]

    def _looked(self, log: JobLog, look: Callable[[JobLog], tuple[_Found, Damage]]) -> _Found:
        """What a look at a log finds; once more where it meets damage, after what can be repaired now."""
        found, damage = look(log)
        if damage.index or damage.lines:
            if damage.index:
                with log.view:
                    log.forget()
            try:
                with self._held(log, self._read_wait_s):
                    # Once more: it may have been put back, or written, at this very moment.
                    found, damage = look(log)
                    _doubt(log, damage)
            except OSError as error:
                logger.warning("The damaged log in %s cannot be repaired now: %s", log.directory, error)
        return found

    def _seen(self, project: str, job_id: str) -> JobLog:
        """The job's log with all that the index has now; repaired, where that can be done at once."""
        log = self._job(project, job_id)
        with log.view:
            if log.catch_up() and (log.checked or not log.directory.is_dir()):
                return log
        try:
            with self._held(log, self._read_wait_s):
                pass
        except OSError as error:
            logger.warning("The log in %s cannot be checked now: %s", log.directory, error)
        return log

    @contextmanager
    def _held(self, log: JobLog, wait_s: float, make: bool = False) -> Iterator[Held]:
        """The log, caught up and repaired, with its lock. Raises LogBusy, or what the disk says."""
        if not log.writing.acquire(timeout=wait_s):
            raise LogBusy(f"The log in {log.directory} is being written by another thread for {wait_s:g} s.")
        try:
            if make:
                log.directory.mkdir(parents=True, exist_ok=True)
            with held(log.directory, wait_s) as lock, log.view:
                log.ready(lock)
                yield lock
        finally:
            log.writing.release()

    def _job(self, project: str, job_id: str) -> JobLog:
        key = (project, job_id)
        with self._lock:
            log = self._jobs.get(key)
            if log is None:
                log = self._jobs[key] = JobLog(self._path(*key), partial(self._note, *key))
            self._jobs.move_to_end(key)
            if len(self._jobs) > _OPEN_JOBS:
                oldest = next((known for known, old in self._jobs.items() if not old.doubtful), key)
                del self._jobs[
                    oldest
                ]  # whoever still uses it is kept apart from others by the lock on the disk
        return log

    def _path(self, project: str, job_id: str) -> Path:
        for name in (project, job_id):
            if not name or name.startswith(".") or "/" in name or "\0" in name:
                raise InvalidArgument(f"{name!r} cannot name a project or a job.")
        return self._directory / project / job_id

    def _note(self, project: str, job_id: str, name: str, what: str) -> None:
        where = (project, job_id, name)
        with self._lock:
            known = self._problems.pop(where, "")
            if what:
                self._problems[where] = what
                if len(self._problems) > _PROBLEMS:
                    self._problems.popitem(last=False)
        if what and what != known:
            logger.error("The log of job %s of %s is damaged: %s: %s", job_id, project, name, what)
        elif known and not what:
            logger.warning("The log of job %s of %s, %s, is whole again", job_id, project, name)


def _least(total: int, until: int | None) -> int:
    return total if until is None else min(total, until)


def _doubt(log: JobLog, damage: Damage) -> None:
    for stream, number in damage.lines:
        log.doubt(stream, number, number + 1, "some of its lines are damaged")
