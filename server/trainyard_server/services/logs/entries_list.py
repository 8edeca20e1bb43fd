"""`entries:list` of Cloud Logging on the log of one job: what gcloud's `stream-logs` and the Logging clients ask.

Readers go on behind the latest time that they have seen. Lines of several replicas arrive in another order than they
were printed, so a line is given the latest time of the lines before it, if its own is earlier: the order by time is
then that of the cursors, and nobody misses a line that arrives late.
"""

import base64
import binascii
import bisect
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_protocol.views import LogEntry
from trainyard_server.context import Backend
from trainyard_server.domain import logging_filter
from trainyard_server.domain.logging_filter import LoggingFilter
from trainyard_server.domain.permissions import Caller
from trainyard_server.services.logs.batches import LogExecutors
from trainyard_server.storage.logs.store import TIME_STEP

MAX_PAGE_SIZE = 1000

_DEFAULT_PAGE_SIZE = 50
_MOST_STEPS = 20  # of TIME_STEP lines, in one request
_MOST_CHARACTERS = 1 << 22  # of lines that one request reads
_PROJECT = "projects/"
_ORDERS = {"": False, "timestamp": False, "timestamp asc": False, "timestamp desc": True}
_CURSOR = re.compile(r"\d{1,15}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EntriesRequest(BaseModel):
    """The request of `entries:list`. The lines of one job, in one project."""

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
                Violation(
                    "order_by",
                    f"must be timestamp asc or timestamp desc; this is {quoted(request.order_by)}.",
                )
            )
        log_filter = logging_filter.parse(request.filter)
        if log_filter is None:
            raise InvalidArgument(
                Violation(
                    "filter", f'must name a job, as in {logging_filter.JOB_ID}="JOB" AND severity>=ERROR.'
                )
            )
        size = min(request.page_size or _DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        return await self._threads.run(partial(self._page, project, log_filter, request, size))

    def _page(
        self, project: str, log_filter: LoggingFilter, request: EntriesRequest, size: int
    ) -> dict[str, Any]:
        with self._backend.store.read() as reader:
            if reader.job(project, log_filter.job_id) is None:
                return {}
        back = _ORDERS[request.order_by]
        job_id = log_filter.job_id
        latest, total = self._backend.logs.latest_times(project, job_id)
        after = _read_token(request) if request.page_token else None
        entries: list[dict[str, Any]] = []
        cursor = characters = 0
        for steps, step in enumerate(_steps(latest, total, log_filter, back, after), 1):
            is_full = steps == _MOST_STEPS
            for time, line in self._lines(project, job_id, step, after, back):
                cursor = line.cursor
                characters += len(line.text)
                if not line.overwritten and log_filter.passes(time, _fields(project, job_id, line)):
                    entries.append(_entry(project, job_id, time, line))
                if len(entries) == size or characters >= _MOST_CHARACTERS:
                    is_full = True
                    break
            if is_full:
                more = cursor > 1 if back else cursor < total
                token = {"nextPageToken": _token(request, cursor)} if more else {}
                return {**({"entries": entries} if entries else {}), **token}
        return {"entries": entries} if entries else {}

    def _lines(
        self, project: str, job_id: str, step: int, after: int | None, back: bool
    ) -> Iterator[tuple[int, LogEntry]]:
        """The lines of a step with their times, those behind the cursor `after`; with `back` those before it, the last
        one first. Few at a time are in memory: a line may be long."""
        logs, first = self._backend.logs, step * TIME_STEP
        times = logs.latest_in(project, job_id, step)
        begin, end = first, first + len(times)
        if after is not None:
            begin, end = (begin, min(end, after - 1)) if back else (max(begin, after), end)
        while begin < end:
            if back:
                result = logs.read_back(project, job_id, end + 1, max_lines=end - begin)
                found = [line for line in reversed(result.entries) if line.cursor > begin]
                end = result.first - 1
            else:
                result = logs.read(project, job_id, begin, until=end, max_lines=end - begin)
                found = list(result.entries)
                begin = result.last if result.more else end
            for line in found:
                yield times[line.cursor - first - 1], line


def _steps(
    latest: Sequence[int], total: int, log_filter: LoggingFilter, back: bool, after: int | None
) -> Iterator[int]:
    """The steps that may have lines that pass, in the order of reading."""
    first = bisect.bisect_left(latest, log_filter.earliest)
    last = min(bisect.bisect_right(latest, log_filter.latest), (max(total, 1) - 1) // TIME_STEP)
    if after is not None:
        at = (after - 1) // TIME_STEP
        first, last = (first, min(last, at)) if back else (max(first, at), last)
    yield from range(last, first - 1, -1) if back else range(first, last + 1)


def _project(request: EntriesRequest) -> str:
    names = {
        *(name.removeprefix(_PROJECT) for name in request.resource_names if name.startswith(_PROJECT)),
        *request.project_ids,
    }
    if len(names) != 1 or any("/" in name or not name for name in names):
        raise InvalidArgument(
            Violation(
                "resource_names",
                f"must be one project, as in projects/P; this is {quoted(request.resource_names)}.",
            )
        )
    return names.pop()


def _fields(project: str, job_id: str, line: LogEntry) -> Mapping[str, str]:
    return {
        "severity": line.severity,
        "insertId": _insert_id(line.cursor),
        "textPayload": line.text,
        "jsonPayload.message": line.text,
        "logName": f"{_PROJECT}{project}/logs/{line.task}",
        "resource.type": "ml_job",
        logging_filter.JOB_ID: job_id,
        "resource.labels.project_id": project,
        "resource.labels.task_name": line.task,
        "labels.task_name": line.task,
        "labels.trial_id": _trial(job_id),
    }


def _entry(project: str, job_id: str, time: int, line: LogEntry) -> dict[str, Any]:
    trial = (
        {"ml.googleapis.com/trial_id": _trial(job_id), "trial_id": _trial(job_id)} if _trial(job_id) else {}
    )
    at = _EPOCH + timedelta(microseconds=time)
    return {
        "logName": f"{_PROJECT}{project}/logs/{line.task}",
        "resource": {
            "type": "ml_job",
            "labels": {"job_id": job_id, "project_id": project, "task_name": line.task},
        },
        "timestamp": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "severity": line.severity,
        "insertId": _insert_id(line.cursor),
        "labels": {"task_name": line.task, "ml.googleapis.com/task_name": line.task, **trial},
        **_payload(line.text),
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


def _trial(job_id: str) -> str:
    """The number of the trial whose job it is; "" for other jobs."""
    return job_id.partition(".")[2]


def _insert_id(cursor: int) -> str:
    """Of fixed length: insertIds are compared as text."""
    return f"{cursor:016d}"


def _token(request: EntriesRequest, cursor: int) -> str:
    return base64.urlsafe_b64encode(f"{cursor}:{_fingerprint(request)}".encode()).decode()


def _read_token(request: EntriesRequest) -> int:
    try:
        text = base64.urlsafe_b64decode(request.page_token.encode()).decode()
    except (ValueError, binascii.Error):
        text = ""
    cursor, _, fingerprint = text.partition(":")
    if _CURSOR.fullmatch(cursor) and fingerprint == _fingerprint(request):
        return int(cursor)
    raise InvalidArgument(
        Violation("page_token", "is not one of this request: use it with the filter that it came with.")
    )


def _fingerprint(request: EntriesRequest) -> str:
    return hashlib.sha256(f"{request.filter}\n{request.order_by}".encode()).hexdigest()[:12]
