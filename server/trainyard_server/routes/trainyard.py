"""What the service has beyond the v1 API: status, details, explanations, and logs as server-sent events."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

import trainyard_protocol
from trainyard_protocol.config_views import ConfigCheck, ConfigCheckRequest, JobConfig, SuggestedId
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.health import CheckStatus, Finding, ServerHealth
from trainyard_protocol.usage import UsageView
from trainyard_protocol.views import Explanation, JobDetail, LogEntry, LogSummary, ServerStatus, WhyView
from trainyard_server.measuring import DEFAULT_POINTS as USAGE_POINTS
from trainyard_server.metrics import DEFAULT_POINTS, Wanted, csv_blocks
from trainyard_server.routes.common import Asker, Cases, RawBody, UseCases, parse_wire
from trainyard_server.trouble import Troubles, reason

router = APIRouter(prefix="/trainyard/v1")

# Some readers of server-sent events take these for the end of a line; in JSON they may be written as escapes.
_LINE_ENDS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}

_troubles = Troubles(logging.getLogger(__name__))


@router.get("/status")
def status(cases: Cases) -> ServerStatus:
    return cases.explaining.status()


@router.get("/health")
async def health(cases: Cases, deep: bool = False) -> ServerHealth:
    """What `/healthz` says, and more for those who may know it; with `deep` everything is looked at."""
    return await _server_health(cases, cases.diagnosis.findings if deep else tuple)


@router.post("/health:mend")
async def mend(cases: Cases) -> ServerHealth:
    """Does what of the findings can be mended here and is safe; the answer has what was done."""
    return await _server_health(cases, cases.diagnosis.mend)


@router.get("/projects/{project}/jobs/{job_id}")
def detail(project: str, job_id: str, cases: Cases) -> JobDetail:
    return cases.explaining.detail(project, job_id)


@router.get("/projects/{project}/jobs/{job_id}/why")
def why(project: str, job_id: str, cases: Cases) -> WhyView:
    return cases.why.why(project, job_id)


@router.get("/projects/{project}/jobs/{job_id}/usage")
def usage(
    project: str,
    job_id: str,
    cases: Cases,
    run: Annotated[int | None, Query()] = None,
    points: int = USAGE_POINTS,
) -> UsageView:
    return cases.measuring.view(project, job_id, run, points)


@router.get("/projects/{project}/jobs/{job_id}/explain")
def explain(
    project: str,
    job_id: str,
    cases: Cases,
    task: str = "",
    run: Annotated[int | None, Query()] = None,
) -> Explanation:
    return cases.explaining.explain(project, job_id, task, run)


@router.get("/projects/{project}/jobs/{job_id}/config")
def config(project: str, job_id: str, cases: Cases) -> JobConfig:
    """As it was sent, as it was resolved, and what to type to have it once more."""
    return cases.configs.config(project, job_id)


@router.post("/projects/{project}/configs:check")
def check_config(project: str, body: RawBody, cases: Cases, caller: Asker) -> ConfigCheck:
    """What submit would say of a config's text, each problem with its line and column. Nothing is created."""
    return cases.configs.check(caller, project, parse_wire(ConfigCheckRequest, body))


@router.get("/projects/{project}/jobs:suggest")
def suggest(project: str, like: str, cases: Cases) -> SuggestedId:
    """A job id that is free in the project."""
    return cases.configs.suggest(project, like)


@router.get("/projects/{project}/jobs/{job_id}/logs")
async def logs(
    project: str,
    job_id: str,
    cases: Cases,
    follow: bool = False,
    task: str = "",
    severity: str = "",
    since: str = "",
    search: str = "",
    after: int = 0,
    last_event_id: Annotated[str, Header(alias="Last-Event-ID")] = "",
) -> EventSourceResponse:
    """Resumes after the cursor in `Last-Event-ID`, else in `after`. Of all lines those that `task`, `severity` (at
    least), `since` (a time, or how long ago) and `search` (any case) leave."""
    cursor = _cursor(last_event_id) if last_event_id else after
    if cursor < 0:
        raise InvalidArgument(Violation("after", f"must be 0 or more; this is {cursor}."))
    wanted = cases.streaming.filter(task, severity, since, search)
    key = await run_in_threadpool(cases.streaming.check, project, job_id)
    news = cases.streaming.stream(project, job_id, key=key, after=cursor, follow=follow, wanted=wanted)
    return EventSourceResponse(
        _events(news), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


@router.get("/projects/{project}/jobs/{job_id}/metrics", response_model=None)
def metrics(
    project: str,
    job_id: str,
    cases: Cases,
    name: Annotated[tuple[str, ...], Query()] = (),
    task: str = "",
    from_step: int | None = None,
    to_step: int | None = None,
    points: int = DEFAULT_POINTS,
    after: str = "",
) -> Response:
    """A `MetricsView`. Of each curve between two steps (both included) at most `points`, such that its peaks stay;
    ask for a part of it to see more there."""
    wanted = Wanted(name, task, from_step, to_step, points, after)
    view = cases.metrics.view(project, job_id, wanted)
    return Response(
        view.model_dump_json(), media_type="application/json", headers={"Cache-Control": "no-store"}
    )


@router.get("/projects/{project}/jobs/{job_id}/metrics.csv", response_model=None)
def metrics_csv(project: str, job_id: str, cases: Cases) -> StreamingResponse:
    """Every point of every run: run, task, name, step, time, value."""
    rows = cases.metrics.rows(project, job_id)
    return StreamingResponse(
        csv_blocks(rows),
        media_type="text/csv; charset=utf-8",
        headers={
            "Cache-Control": "no-store",
            "Content-Disposition": f'attachment; filename="{job_id}-metrics.csv"',
        },
    )


async def _server_health(cases: UseCases, look: Callable[[], tuple[Finding, ...]]) -> ServerHealth:
    now = await cases.health.look()
    answers = now.checks["database"].status is not CheckStatus.DOWN
    return ServerHealth(
        status=now.status,
        checks=now.checks,
        version=trainyard_protocol.__version__,
        time=cases.backend.clock(),
        live_runs=await run_in_threadpool(cases.diagnosis.live_runs) if answers else None,
        findings=await run_in_threadpool(look) if answers else (),
    )


async def _events(news: AsyncIterator[LogEntry | JobDetail | LogSummary | None]) -> AsyncIterator[bytes]:
    """Where the database or the disk cannot be used, the stream ends without its `end`: the reader comes back."""
    try:
        async for item in news:
            match item:
                case LogEntry():
                    data = item.model_dump_json().translate(_LINE_ENDS)
                    yield format_sse_event(event="log", id=str(item.cursor), data_str=data)
                case JobDetail():
                    yield format_sse_event(event="job", data_str=item.model_dump_json())
                case LogSummary():
                    yield format_sse_event(event="end", data_str=item.model_dump_json())
                case None:
                    yield KEEPALIVE_COMMENT
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
