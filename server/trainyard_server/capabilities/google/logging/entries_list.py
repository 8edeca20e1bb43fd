"""`entries:list` of Cloud Logging on the logs of jobs: what gcloud's `stream-logs` and the Logging clients ask.

Readers go on behind the latest time that they have seen. Lines of several replicas arrive in another order than they
were printed, so a line is given the latest time of the lines before it in its job's log, if its own is earlier: the
order by time is then that of the cursors, and nobody misses a line that arrives late. The logs of several jobs, such as
a study's with those of its trials, are merged by these times.
"""

import base64
import binascii
import bisect
import functools
import hashlib
import heapq
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_server.capabilities.google.logging import filter as logging_filter
from trainyard_server.capabilities.google.logging.filter import LoggingFilter
from trainyard_server.context import Backend
from trainyard_server.domain.access.permissions import Caller
from trainyard_server.services.logs.batches import LogExecutors
from trainyard_server.storage.db.tables.studies import LoggedJob, logged_jobs
from trainyard_server.storage.logs.records import instant
from trainyard_server.storage.logs.store import TIME_STEP

MAX_PAGE_SIZE = 1000

_DEFAULT_PAGE_SIZE = 50
_MOST_LINES = 20_000  # that one request reads
_MOST_CHARACTERS = 1 << 22
_MOST_JOBS = 2000  # whose logs one request opens
_BATCH = 100
_SKEW = 60 * 10**6
"""Microseconds between the times of a job, by the server, and those of its lines, by its machines."""

_DELAY = 5 * 10**6  # microseconds after which lines of all machines have arrived
_LAST = 250_000_000_000_000_000  # microseconds since 1970 that a database can have
_PROJECT = "projects/"
_ORDERS = {"": False, "timestamp": False, "timestamp asc": False, "timestamp desc": True}
_TOKEN = re.compile(r"(?P<time>\d{1,19}):(?P<insert_id>\d{0,40}):(?P<request>\w+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EntriesRequest(BaseModel):
    """The request of `entries:list`. The lines of jobs of one project."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    resource_names: tuple[str, ...] = Field(default=(), max_length=100)
    project_ids: tuple[str, ...] = Field(default=(), max_length=100)
    filter: str = ""
    order_by: str = ""
    page_size: int = 0
    page_token: str = ""


class _Answer(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid")


class LoggingResource(_Answer):
    type: str
    labels: dict[str, str]


class LoggingEntry(_Answer):
    """A line: `jsonPayload` has one that is a JSON object with a message, `textPayload` any other."""

    log_name: str
    resource: LoggingResource
    timestamp: datetime
    receive_timestamp: datetime
    severity: str
    insert_id: str
    labels: dict[str, str]
    text_payload: str = ""
    json_payload: dict[str, Any] = {}


class EntriesPage(_Answer):
    """The answer of `entries:list`, for its description."""

    entries: tuple[LoggingEntry, ...] = ()
    next_page_token: str = ""


class EntriesList:
    def __init__(self, backend: Backend, threads: LogExecutors) -> None:
        self._backend = backend
        self._threads = threads

    async def page(self, caller: Caller, request: EntriesRequest) -> dict[str, Any]:
        """`{"entries": [...], "nextPageToken": ...}`. A page may have fewer lines than asked for, or none, and others
        behind it. Raises InvalidArgument, PermissionDenied."""
        project = _project(request)
        caller.check_sees(project)
        if request.page_size < 0:
            raise InvalidArgument(Violation("page_size", f"must be 0 or more; this is {request.page_size}."))
        if request.order_by not in _ORDERS:
            raise InvalidArgument(
                Violation("order_by", f"must be timestamp asc or timestamp desc; this is {quoted(request.order_by)}.")
            )
        log_filter = logging_filter.parse(request.filter)
        size = min(request.page_size or _DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        return await self._threads.run(partial(self._page, project, log_filter, request, size))

    def _page(self, project: str, log_filter: LoggingFilter, request: EntriesRequest, size: int) -> dict[str, Any]:
        back = _ORDERS[request.order_by]
        position = _read_token(request) if request.page_token else None
        window = _Window(log_filter.earliest, min(log_filter.latest, _LAST), back, position)
        with self._backend.store.read() as reader:
            jobs = logged_jobs(
                reader,
                project,
                log_filter.jobs,
                _time(window.earliest - _SKEW),
                _time(window.latest + _SKEW),
                newest_first=back,
                limit=_MOST_JOBS + 1,
            )
        horizon = jobs[_MOST_JOBS] if len(jobs) > _MOST_JOBS else None
        window = self._bounded(window, jobs, horizon)
        lines = Budget(_MOST_LINES, _MOST_CHARACTERS)
        entries: list[dict[str, Any]] = []
        for line in self._merged(project, jobs[:_MOST_JOBS], window):
            position = line.position
            shown = _Shown(project, line)
            if not line.entry.overwritten and log_filter.passes(line.time, shown.value_of):
                entries.append(shown.entry)
            if lines.is_used_by(line.entry.text) or len(entries) == size:
                return _answer(entries, _token(request, position))
        return _answer(entries, "" if horizon is None else _token(request, (window.end, "")))

    def _bounded(self, window: "_Window", jobs: Sequence[LoggedJob], horizon: LoggedJob | None) -> "_Window":
        """The part of a window in which all lines are those of the first _MOST_JOBS jobs, the next of which is
        `horizon`. Raises InvalidArgument where so many jobs ran at the same time that there is none."""
        if horizon is not None:
            bound = instant(horizon.until) + _SKEW if window.back else instant(horizon.created_at) - _SKEW
            window = window.up_to(bound)
            if window.earliest >= window.latest:
                message = (
                    f"asks for the lines of more than {_MOST_JOBS} jobs that ran at the same time. Name a job, as in "
                    f'{logging_filter.JOB_ID}="JOB", or times at which fewer ran.'
                )
                raise InvalidArgument(Violation("filter", message))
        if not window.back and len(jobs) > 1 and any(job.is_live for job in jobs):
            # Lines of several machines arrive in another order than they were printed in.
            return window.up_to(instant(self._backend.clock()) - _DELAY)
        return window

    def _merged(self, project: str, jobs: Sequence[LoggedJob], window: "_Window") -> "Iterator[_Line]":
        """The lines of several logs in the order of their positions. A log is opened once its lines may be next."""
        waiting = deque(jobs)
        heads: list[tuple[Any, _Line, Iterator[_Line]]] = []
        while waiting or heads:
            while waiting and (not heads or _may_precede(waiting[0], heads[0][1].time, window.back)):
                job = waiting.popleft()
                self._push(heads, self._lines(project, job, window), window.back)
            if heads:
                _, line, rest = heapq.heappop(heads)
                yield line
                self._push(heads, rest, window.back)

    @staticmethod
    def _push(heads: "list[tuple[Any, _Line, Iterator[_Line]]]", lines: "Iterator[_Line]", back: bool) -> None:
        line = next(lines, None)
        if line is not None:
            key = _Descending(line.position) if back else line.position
            heapq.heappush(heads, (key, line, lines))

    def _lines(self, project: str, job: LoggedJob, window: "_Window") -> "Iterator[_Line]":
        """The lines of a job in a window. Few at a time are in memory: a line may be long."""
        logs = self._backend.logs
        latest, total = logs.latest_times(project, job.job_id)
        for step in _steps(latest, total, window):
            times, first = logs.latest_in(project, job.job_id, step), step * TIME_STEP
            begin = first + bisect.bisect_left(times, window.earliest)
            end = first + bisect.bisect_right(times, window.latest)
            while begin < end:
                if window.back:
                    result = logs.read_back(project, job.job_id, end + 1, max_lines=min(_BATCH, end - begin))
                    entries = [line for line in reversed(result.entries) if line.cursor > begin]
                    end = result.first - 1
                else:
                    most = min(_BATCH, end - begin)
                    result = logs.read(project, job.job_id, begin, until=end, max_lines=most)
                    entries = list(result.entries)
                    begin = result.last if result.more else end
                for entry in entries:
                    line = _Line(job, times[entry.cursor - first - 1], entry)
                    if window.has(line.position):
                        yield line


_Position = tuple[int, str]
"""The time and the insertId of a line: lines are sorted by both."""


@dataclass(frozen=True, slots=True)
class _Window:
    """The lines between two times, both included, and behind `after` in the order of reading; `back`: the newest
    first."""

    earliest: int
    latest: int
    back: bool
    after: _Position | None = None

    def __post_init__(self) -> None:
        if self.after is not None and self.back:
            object.__setattr__(self, "latest", min(self.latest, self.after[0]))
        elif self.after is not None:
            object.__setattr__(self, "earliest", max(self.earliest, self.after[0]))

    @property
    def end(self) -> int:
        """The time at which reading ends."""
        return self.earliest if self.back else self.latest

    def up_to(self, time: int) -> "_Window":
        """The window with an end that is not behind a time."""
        if self.back:
            return replace(self, earliest=max(self.earliest, time))
        return replace(self, latest=min(self.latest, time))

    def has(self, position: _Position) -> bool:
        if self.after is None:
            return True
        return position < self.after if self.back else position > self.after


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a job's log, with the time by which it is sorted."""

    job: LoggedJob
    time: int
    entry: LogEntry

    @property
    def insert_id(self) -> str:
        """Unique among the lines of all jobs, and in their order in one: insertIds are compared as text."""
        return f"{self.entry.cursor:016d}{self.job.key:012d}"

    @property
    def position(self) -> _Position:
        return self.time, self.insert_id


@functools.total_ordering
@dataclass(frozen=True, slots=True)
class _Descending:
    """A position in a heap whose first is the greatest."""

    position: _Position

    def __lt__(self, other: "_Descending") -> bool:
        return self.position > other.position


@dataclass(slots=True)
class Budget:
    """The lines and characters that one request may still read."""

    lines: int
    characters: int

    def is_used_by(self, text: str) -> bool:
        """Whether nothing is left after this line."""
        self.lines -= 1
        self.characters -= len(text)
        return self.lines <= 0 or self.characters <= 0


def _may_precede(job: LoggedJob, time: int, back: bool) -> bool:
    """Whether a job that was not opened yet may have a line that comes before or at this time."""
    return instant(job.until) + _SKEW >= time if back else instant(job.created_at) - _SKEW <= time


def _steps(latest: Sequence[int], total: int, window: _Window) -> Iterator[int]:
    """The steps of a log that may have lines of a window, in the order of reading."""
    first = bisect.bisect_left(latest, window.earliest)
    last = min(bisect.bisect_right(latest, window.latest), (max(total, 1) - 1) // TIME_STEP)
    yield from range(last, first - 1, -1) if window.back else range(first, last + 1)


def _time(microseconds: int) -> datetime:
    """A time as the database can compare it."""
    return _EPOCH + timedelta(microseconds=min(max(microseconds, 0), _LAST))


def _answer(entries: list[dict[str, Any]], token: str) -> dict[str, Any]:
    return {name: value for name, value in (("entries", entries), ("nextPageToken", token)) if value}


def _project(request: EntriesRequest) -> str:
    names = {
        *(name.removeprefix(_PROJECT) for name in request.resource_names if name.startswith(_PROJECT)),
        *request.project_ids,
    }
    if len(names) != 1 or any("/" in name or not name for name in names):
        raise InvalidArgument(
            Violation(
                "resource_names", f"must be one project, as in projects/P; this is {quoted(request.resource_names)}."
            )
        )
    return names.pop()


class _Shown:
    """A line as its entry, which is made once it is asked for."""

    def __init__(self, project: str, line: _Line) -> None:
        self._project, self._line = project, line

    @functools.cached_property
    def entry(self) -> dict[str, Any]:
        return _entry(self._project, self._line)

    def value_of(self, field: str) -> str | None:
        """The value of a field of the entry as text; None where it has none."""
        job, own = self._line.job, self._line.entry
        if field == "severity":
            return own.severity
        if field == logging_filter.TRIAL_JOB:
            return job.job_id if job.study else None
        value: Any = self.entry
        rest = field
        while rest and isinstance(value, dict):
            # The key of a label may have dots.
            name, rest = (rest, "") if rest in value else rest.partition(".")[::2]
            value = value.get(name)
        if rest or value is None:
            return None
        if field == "jsonPayload":
            return own.text
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _entry(project: str, line: _Line) -> dict[str, Any]:
    """An entry. A line of a trial is one of its study's job, with the number of the trial."""
    job, task = line.job, line.entry.task
    number = str(job.trial)
    trial = {"ml.googleapis.com/trial_id": number, "trial_id": number} if job.trial else {}
    job_id = job.study or job.job_id
    at = (_EPOCH + timedelta(microseconds=line.time)).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return {
        "logName": f"{_PROJECT}{project}/logs/{task}",
        "resource": {"type": "ml_job", "labels": {"job_id": job_id, "project_id": project, "task_name": task}},
        "timestamp": at,
        "receiveTimestamp": at,
        "severity": line.entry.severity,
        "insertId": line.insert_id,
        "labels": {"task_name": task, "ml.googleapis.com/job_id": job_id, "ml.googleapis.com/task_name": task, **trial},
        **_payload(line.entry.text),
    }


def _payload(text: str) -> dict[str, Any]:
    """A line that is a JSON object with a message, as structured loggers write, is that object. Python's json reads
    and writes more than that: NaN, and halves of surrogate pairs."""
    if text.startswith("{"):
        try:
            fields = json.loads(text)
            json.dumps(fields, allow_nan=False, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            return {"textPayload": text}
        if isinstance(fields, dict) and isinstance(fields.get("message"), str):
            return {"jsonPayload": fields}
    return {"textPayload": text}


def _token(request: EntriesRequest, position: _Position) -> str:
    time, insert_id = position
    return base64.urlsafe_b64encode(f"{time}:{insert_id}:{_fingerprint(request)}".encode()).decode()


def _read_token(request: EntriesRequest) -> _Position:
    try:
        text = base64.urlsafe_b64decode(request.page_token.encode()).decode()
    except (ValueError, binascii.Error):
        text = ""
    match = _TOKEN.fullmatch(text)
    if match is not None and match["request"] == _fingerprint(request):
        return int(match["time"]), match["insert_id"]
    raise InvalidArgument(
        Violation("page_token", "is not one of this request: use it with the filter that it came with.")
    )


def _fingerprint(request: EntriesRequest) -> str:
    return hashlib.sha256(f"{request.filter}\n{request.order_by}".encode()).hexdigest()[:12]
