"""The log lines of all jobs, in files that several server processes write and read at the same time.

`<data_dir>/logs/<project>/<job>/` holds `segment`, records with a CRC for the lines of all replicas and of the service
in the order of arrival, those that came together in one; `segment.records`, an entry of fixed size for each record,
which can be rebuilt from the segment; and `lock`. The ordinal of a line is its cursor: the same for every reader, for
ever.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.wire.logs import LogDigest, LogEnd, LogLine, LogPosition
from trainyard_server.storage.files import LockTimeout, job_directory, locked, remove_directory, sync
from trainyard_server.storage.logs.filter import EVERYTHING, LogFilter
from trainyard_server.storage.logs.index import IndexDamaged
from trainyard_server.storage.logs.job_log import TIME_STEP, Appended, JobLog, LogMismatch, ReadResult, all_entries
from trainyard_server.storage.streams import SERVICE, Stream

__all__ = ["SERVICE", "TIME_STEP", "LockTimeout", "LogFilter", "LogMismatch", "LogStore", "ReadResult", "Stream"]

_T = TypeVar("_T")

_OPEN_JOBS = 512  # whose state is held in memory

logger = logging.getLogger(__name__)


class LogStore:
    """The logs under one directory. Safe to use from any thread of any process of this machine.

    `durable`: a log that was verified survives a power failure; it survives the end of a process in any case.
    `write_wait_s`: how long a writer waits for another one. `read_wait_s`: how long a reader waits that finds an index
    in need of repair, before it reads what it can.
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
        directory.mkdir(parents=True, exist_ok=True)

    def append(
        self, project: str, job_id: str, stream: Stream, start: int, lines: Sequence[LogLine], quota: int = 0
    ) -> Appended:
        """Add those of the lines `start`, `start + 1`, ... that continue the stream.

        Lines that it already has are skipped, and so is a chunk that leaves a gap: repeating a chunk is harmless. Lines
        that would take the job's log over `quota` bytes are left out (0: no quota; the service's lines are always
        stored). After an OSError nothing of the chunk is promised; it may be sent again. Raises LockTimeout, one of
        them, while another writer has the lock.
        """
        log = self._job(project, job_id)
        with self._writing(log, self._write_wait_s, makes=True):
            return log.append(stream, start, lines, quota)

    def verify(self, project: str, job_id: str, stream: Stream, end: LogEnd) -> bool:
        """True if the stream is complete, and durable from now on; False if lines are still to come.

        Raises LogMismatch if no line that is still to come could make it right.
        """
        log = self._job(project, job_id)
        try:
            with self._writing(log, self._write_wait_s):
                is_complete = log.verify(stream, end)
                if is_complete and end.count and self._durable:
                    sync(log.segment)
        except FileNotFoundError:  # nothing was stored, or it was removed meanwhile
            with log.view:
                log.reset()
                return log.verify(stream, end)
        return is_complete

    def sha256(self, project: str, job_id: str, stream: Stream) -> str:
        """The digest of the lines of a stream that was verified."""
        log = self._job(project, job_id)
        with self._writing(log, self._write_wait_s):
            return log.sha256(stream)

    def position(self, project: str, job_id: str, stream: Stream) -> LogPosition:
        """The end of a stream so far. Reads it whole."""
        digest, last_time, same_time = LogDigest(), "", 0
        for entry in self.entries(project, job_id, LogFilter(frozenset((stream.task,)), run=stream.run)):
            digest.add(entry.stream, entry.text)
            same_time = same_time + 1 if entry.time == last_time else 1
            last_time = entry.time
        return LogPosition(next=digest.count, chain=digest.chain or "", last_time=last_time, same_time=same_time)

    def remove(self, project: str, job_id: str) -> None:
        """Remove the log of a job that has ended; does nothing without one. Raises OSError, also LockTimeout."""
        log = self._job(project, job_id)
        if not log.writing.acquire(timeout=self._write_wait_s):
            raise LockTimeout(f"The log in {log.directory} is locked by another thread.")
        try:
            remove_directory(log.directory, self._write_wait_s)
            with log.view:
                log.reset()
        finally:
            log.writing.release()

    def read(
        self,
        project: str,
        job_id: str,
        after: int = 0,
        log_filter: LogFilter = EVERYTHING,
        until: int | None = None,
        max_lines: int = 500,
    ) -> ReadResult:
        """The lines after a cursor that pass the filter, up to the cursor `until` if it is given.

        One call does a bounded amount of work, so that a result may be empty and have more behind it. A damaged line
        says so. Waits for no writer. Raises OSError.
        """
        return self._read(project, job_id, lambda log: log.read(log_filter, after, until, max_lines))

    def read_back(
        self,
        project: str,
        job_id: str,
        before: int | None = None,
        log_filter: LogFilter = EVERYTHING,
        max_lines: int = 500,
    ) -> ReadResult:
        """The last lines before a cursor, or of all; otherwise like `read`."""
        until = None if before is None else before - 1
        return self._read(project, job_id, lambda log: log.read(log_filter, 0, until, max_lines, back=True))

    def entries(self, project: str, job_id: str, log_filter: LogFilter = EVERYTHING) -> Iterator[LogEntry]:
        """All lines that pass the filter, in the order of arrival."""
        return all_entries(lambda after: self.read(project, job_id, after, log_filter))

    def last_entries(
        self, project: str, job_id: str, stream: Stream, lines: int, characters: int = 2**62
    ) -> tuple[LogEntry, ...]:
        """The last lines of a stream, the oldest first: at most so many, and not many more characters; no overwritten
        states of progress bars."""
        log_filter = LogFilter(frozenset((stream.task,)), run=stream.run)
        entries: list[LogEntry] = []
        before: int | None = None
        while len(entries) < lines and characters > 0 and before != 1:
            page = self.read_back(project, job_id, before, log_filter, lines - len(entries))
            shown = [entry for entry in page.entries if not entry.overwritten]
            entries = [*shown, *entries]
            characters -= sum(len(line.text) for line in shown)
            before = page.first
        return tuple(entries)

    def tail(self, project: str, job_id: str, stream: Stream, lines: int) -> tuple[str, ...]:
        """The text of `last_entries`."""
        return tuple(entry.text for entry in self.last_entries(project, job_id, stream, lines))

    def count(self, project: str, job_id: str, stream: Stream) -> int:
        """Number of lines of a stream, which is the number of its next line."""
        return self.counts(project, job_id).get(stream, 0)

    def counts(self, project: str, job_id: str) -> dict[Stream, int]:
        """Number of lines of each stream."""
        return self.extent(project, job_id)[0]

    def extent(self, project: str, job_id: str) -> tuple[dict[Stream, int], int]:
        """Number of lines of each stream, and the cursor of the last line at that time."""
        log = self._refreshed(project, job_id)
        with log.view:
            return log.counts, log.total

    def latest_times(self, project: str, job_id: str) -> tuple[Sequence[int], int]:
        """The latest times of the first TIME_STEP lines, of twice as many, ...; and the number of lines."""
        log = self._refreshed(project, job_id)
        with log.view:
            return tuple(log.latest), log.total

    def latest_in(self, project: str, job_id: str, step: int) -> Sequence[int]:
        """The latest time up to each of the TIME_STEP lines behind so many steps. Raises OSError."""
        return self._read(project, job_id, lambda log: log.latest_in(step))

    def _read(self, project: str, job_id: str, read: Callable[[JobLog], _T]) -> _T:
        try:
            return read(self._refreshed(project, job_id))
        except IndexDamaged:
            log = self._job(project, job_id)
            with log.view:
                log.reset()
            return read(self._refreshed(project, job_id))

    def _refreshed(self, project: str, job_id: str) -> JobLog:
        """The job's log with all lines that there are now; repaired, if that is needed and the lock is free."""
        log = self._job(project, job_id)
        with log.view:
            if log.refresh() and (log.checked or not log.directory.is_dir()):
                return log
        try:
            with self._writing(log, self._read_wait_s):
                pass
        except FileNotFoundError:
            log.reset()  # another process has removed it
        except OSError as error:
            logger.warning("Cannot check the log in %s: %s", log.directory, error)
        return log

    @contextmanager
    def _writing(self, log: JobLog, wait_s: float, *, makes: bool = False) -> Iterator[None]:
        """Hold the lock of a log that is up to date and repaired; `makes`: one that is not there is made. Raises
        LockTimeout or another OSError."""
        if not log.writing.acquire(timeout=wait_s):
            raise LockTimeout(f"The log in {log.directory} is locked by another thread for {wait_s:g} s.")
        try:
            if makes:
                log.directory.mkdir(parents=True, exist_ok=True)
            with locked(log.directory, wait_s), log.view:
                log.recover()
                yield
        except IndexDamaged:
            log.reset()
            raise
        finally:
            log.writing.release()

    def _job(self, project: str, job_id: str) -> JobLog:
        key = project, job_id
        with self._lock:
            log = self._jobs.get(key)
            if log is None:
                log = self._jobs[key] = JobLog(job_directory(self._directory, project, job_id))
            self._jobs.move_to_end(key)
            if len(self._jobs) > _OPEN_JOBS:
                self._jobs.popitem(last=False)  # a thread that still uses it has the lock on the disk
        return log
