"""A job's log: as server-sent events, by the page, and as a file."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_server.api.dependencies import Cases
from trainyard_server.services.logs.formats import Form, compact
from trainyard_server.storage.failures import Troubles, reason
from trainyard_server.storage.logs.filter import LogFilter

router = APIRouter(prefix="/trainyard/v1/projects/{project}/jobs/{job_id}")

_NOT_KEPT = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}

_troubles = Troubles(logging.getLogger(__name__))


async def _known(project: str, job_id: str, cases: Cases) -> int:
    return await run_in_threadpool(cases.streaming.check, project, job_id)


def _filter(
    cases: Cases,
    task: Annotated[list[str] | None, Query()] = None,
    severity: str = "",
    since: str = "",
    search: str = "",
    run: int | None = None,
) -> LogFilter:
    """Of all lines those of one `task` (given several times: of each), of one `run`, with `severity` at least, since
    `since` (a time, or how long ago), with `search` in them (any case)."""
    return cases.streaming.filter(task or (), severity, since, search, run)


Wanted = Annotated[LogFilter, Depends(_filter)]
Key = Annotated[int, Depends(_known)]  # of the job; 404 where there is none


@router.get("/logs")
async def logs(
    project: str,
    job_id: str,
    cases: Cases,
    wanted: Wanted,
    key: Key,
    follow: bool = False,
    batch: bool = False,
    after: int = 0,
    last_event_id: Annotated[str, Header(alias="Last-Event-ID")] = "",
) -> Response:
    """Resumes after the cursor in `Last-Event-ID`, else in `after`. With `batch` many lines are one event."""
    cursor = _cursor(last_event_id) if last_event_id else after
    if cursor < 0:
        raise InvalidArgument(Violation("after", f"must be 0 or more; this is {cursor}."))
    form = Form.BATCH if batch else Form.EACH
    news = cases.streaming.stream(
        project, job_id, key=key, after=cursor, follow=follow, wanted=wanted, form=form
    )
    return StreamingResponse(_as_long_as_it_goes(news), media_type="text/event-stream", headers=_NOT_KEPT)


@router.get("/logs/page")
async def page(
    project: str,
    job_id: str,
    cases: Cases,
    wanted: Wanted,
    _key: Key,
    before: int | None = None,
    after: int | None = None,
    limit: int = 200,
) -> dict[str, Any]:
    """The last lines before a cursor, or the first after one; without either the last of all."""
    found = await cases.paging.page(project, job_id, before, after, wanted, limit)
    return {
        "lines": compact(found.entries),
        "first": found.first,
        "last": found.last,
        "earlier": found.earlier,
        "later": found.later,
    }


@router.get("/logs/first")
async def first(
    project: str, job_id: str, cases: Cases, wanted: Wanted, _key: Key, after: int = 0
) -> dict[str, Any]:
    """The cursor of the first line that is wanted, after one."""
    sought = await cases.paging.first(project, job_id, after, wanted)
    return {"cursor": sought.cursor, "looked": sought.looked, "more": sought.more}


@router.get("/logs/download")
async def download(project: str, job_id: str, cases: Cases, wanted: Wanted, _key: Key) -> Response:
    """All lines up to now as a file."""
    headers = _NOT_KEPT | {
        "Content-Disposition": f'attachment; filename="{job_id}.log"',
        "X-Content-Type-Options": "nosniff",
    }
    text = cases.paging.text(project, job_id, wanted)
    return StreamingResponse(text, media_type="text/plain; charset=utf-8", headers=headers)


async def _as_long_as_it_goes(news: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    """Where the database or the disk cannot be used, the stream ends without its `end`: the reader comes back."""
    try:
        async with aclosing(news):
            async for part in news:
                yield part
    except Exception as error:
        if reason(error) is None and not isinstance(error, OSError):
            raise
        _troubles.note("A log stream was cut", error)


def _cursor(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(
            Violation("Last-Event-ID", f"must be the id of a log event; this is {text!r}.")
        ) from None
