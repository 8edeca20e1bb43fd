"""What the service has beyond the v1 API: status, details, explanations, and logs as server-sent events."""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.views import Explanation, JobDetail, LogEntry, LogSummary, ServerStatus
from trainyard_server.routes.common import Cases

router = APIRouter(prefix="/trainyard/v1")


@router.get("/status")
def status(cases: Cases) -> ServerStatus:
    return cases.explaining.status()


@router.get("/projects/{project}/jobs/{job_id}")
def detail(project: str, job_id: str, cases: Cases) -> JobDetail:
    return cases.explaining.detail(project, job_id)


@router.get("/projects/{project}/jobs/{job_id}/explain")
def explain(
    project: str,
    job_id: str,
    cases: Cases,
    task: str = "",
    run: Annotated[int | None, Query()] = None,
) -> Explanation:
    return cases.explaining.explain(project, job_id, task, run)


@router.get("/projects/{project}/jobs/{job_id}/logs")
async def logs(
    project: str,
    job_id: str,
    cases: Cases,
    follow: bool = False,
    task: str = "",
    after: int = 0,
    last_event_id: Annotated[str, Header(alias="Last-Event-ID")] = "",
) -> EventSourceResponse:
    """Resumes after the cursor in `Last-Event-ID`, else in `after`."""
    cursor = _cursor(last_event_id) if last_event_id else after
    if cursor < 0:
        raise InvalidArgument(Violation("after", f"must be 0 or more; this is {cursor}."))
    key = await run_in_threadpool(cases.streaming.check, project, job_id, task)
    news = cases.streaming.stream(project, job_id, key=key, task=task, after=cursor, follow=follow)
    return EventSourceResponse(
        _events(news), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _events(news: AsyncIterator[LogEntry | JobDetail | LogSummary | None]) -> AsyncIterator[bytes]:
    async for item in news:
        match item:
            case LogEntry():
                yield format_sse_event(event="log", id=str(item.cursor), data_str=item.model_dump_json())
            case JobDetail():
                yield format_sse_event(event="job", data_str=item.model_dump_json())
            case LogSummary():
                yield format_sse_event(event="end", data_str=item.model_dump_json())
            case None:
                yield KEEPALIVE_COMMENT


def _cursor(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(
            Violation("Last-Event-ID", f"must be the id of a log event; this is {text!r}.")
        ) from None
