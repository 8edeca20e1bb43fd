"""Routes of a job's log: server-sent events, pages, and a download."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import Depends, Header, Query
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.answers.log_views import LogMatch, LogPageView
from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_server.api.dependencies import Cases, within
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.logs.formats import LogFormat
from trainyard_server.services.logs.pages import MOST
from trainyard_server.storage.failures import FailureLog, failure_reason
from trainyard_server.storage.logs.filter import LogFilter, parse_filter

router = Router(prefix="/trainyard/v1/projects/{project}/jobs/{job_id}")

_MAX_CURSOR = 2**53  # what JavaScript can count to

_NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

_failures = FailureLog(logging.getLogger(__name__))


class EventStream(StreamingResponse):
    media_type = "text/event-stream"


_EVENT = {
    "type": "object",
    "description": "Each event of the stream. `id` is a cursor; `data` is JSON.",
    "properties": {name: {"type": "string"} for name in ("event", "id", "data")},
    "required": ["event", "data"],
}
_EVENTS = {"responses": {"200": {"content": {"text/event-stream": {"schema": _EVENT}}}}}


class TextStream(StreamingResponse):
    media_type = "text/plain; charset=utf-8"


async def _job_key(project: str, job_id: str, cases: Cases) -> int:
    return await run_in_threadpool(cases.log_streaming.check, project, job_id)


def _filter(
    cases: Cases,
    task: Annotated[list[str] | None, Query()] = None,
    severity: str = "",
    since: str = "",
    search: str = "",
    run: int | None = None,
) -> LogFilter:
    """Lines of these `task`s, of one `run`, with at least this `severity`, since a time or a duration ago (`since`),
    that contain `search` (in any case)."""
    return parse_filter(task or (), severity, since, search, cases.backend.clock(), run)


Filter = Annotated[LogFilter, Depends(_filter)]
JobKey = Annotated[int, Depends(_job_key)]  # 404 if there is no such job


@router.get(
    "/logs", Access.VIEWER, "its log, followed", is_stream=True, response_class=EventStream, openapi_extra=_EVENTS
)
async def logs(
    project: str,
    job_id: str,
    cases: Cases,
    log_filter: Filter,
    key: JobKey,
    follow: bool = False,
    batch: bool = False,
    lines: bool = True,
    after: Annotated[int, within(0, _MAX_CURSOR)] = 0,
    last_event_id: Annotated[str, Header(alias="Last-Event-ID")] = "",
) -> Response:
    """Resumes after the cursor in `Last-Event-ID`, else in `after`. With `batch` many lines are one event; without
    `lines` only the states of the job are sent."""
    cursor = _cursor(last_event_id) if last_event_id else after
    if not 0 <= cursor <= _MAX_CURSOR:
        raise InvalidArgument(Violation("after", f"must be 0 to {_MAX_CURSOR}; this is {quoted(cursor)}."))
    form = LogFormat.BATCH if batch else LogFormat.EACH
    events = cases.log_streaming.stream(
        project, job_id, key=key, after=cursor, follow=follow, log_filter=log_filter, form=form, with_lines=lines
    )
    return EventStream(_until_failure(events), headers=_NO_STORE)


@router.get("/logs/page", Access.VIEWER, "a page of its log", response_model=LogPageView)
async def page(
    project: str,
    job_id: str,
    cases: Cases,
    log_filter: Filter,
    _key: JobKey,
    before: Annotated[int | None, within(1)] = None,
    after: Annotated[int | None, Query(le=_MAX_CURSOR, json_schema_extra={"minimum": 0})] = None,
    limit: Annotated[int, within(1, MOST)] = 200,
) -> Response:
    """The last lines before a cursor, or the first lines after one; by default the last lines of the log."""
    result = await cases.log_pages.page(project, job_id, before, after, log_filter, limit)
    return JSONResponse(  # as it is: there may be megabytes of lines
        {
            "lines": result.arrays,
            "first": result.first,
            "last": result.last,
            "earlier": result.first > 1,
            "later": result.more,
        }
    )


@router.get("/logs/first", Access.VIEWER, "the first error, or the first line that matches")
async def first(
    project: str,
    job_id: str,
    cases: Cases,
    log_filter: Filter,
    _key: JobKey,
    after: Annotated[int, Query(le=_MAX_CURSOR, json_schema_extra={"minimum": 0})] = 0,
) -> LogMatch:
    """The cursor of the first line that passes the filter, after a cursor."""
    return await cases.log_pages.first(project, job_id, after, log_filter)


@router.get("/logs/download", Access.VIEWER, "its whole log as a file", response_class=TextStream)
async def download(project: str, job_id: str, cases: Cases, log_filter: Filter, _key: JobKey) -> Response:
    """All lines so far as a file."""
    headers = _NO_STORE | {
        "Content-Disposition": f'attachment; filename="{job_id}.log"',
        "X-Content-Type-Options": "nosniff",
    }
    text = cases.log_pages.text(project, job_id, log_filter)
    return TextStream(text, headers=headers)


async def _until_failure(events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Ends the stream without its `end` event if the database or the disk fails, so that the reader reconnects."""
    try:
        async with aclosing(events):
            async for part in events:
                yield part
    except Exception as error:
        if failure_reason(error) is None and not isinstance(error, OSError):
            raise
        _failures.record("A log stream ended early", error)


def _cursor(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(
            Violation("Last-Event-ID", f"must be the id of a log event; this is {quoted(text)}.")
        ) from None
