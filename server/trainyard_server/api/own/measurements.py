"""Routes of what jobs measured: curves and resource usage."""

from itertools import chain
from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import StreamingResponse

from trainyard_protocol.answers.metrics import MetricsView
from trainyard_protocol.answers.usage import UsageView
from trainyard_server.api.dependencies import Cases, within
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access
from trainyard_server.domain.metrics.series import LEAST
from trainyard_server.services.measurements.csv_text import csv_blocks
from trainyard_server.services.measurements.metrics import DEFAULT_POINTS, HEADER, MOST_POINTS, MetricsQuery
from trainyard_server.services.measurements.usage import DEFAULT_POINTS as USAGE_POINTS
from trainyard_server.services.measurements.usage import LEAST_POINTS
from trainyard_server.services.measurements.usage import MOST_POINTS as MOST_USAGE_POINTS

router = Router(prefix="/trainyard/v1")


class CsvStream(StreamingResponse):
    media_type = "text/csv; charset=utf-8"


@router.get("/projects/{project}/jobs/{job_id}/usage", Access.VIEWER, "CPU, memory and GPUs over time")
def usage(
    project: str,
    job_id: str,
    cases: Cases,
    run: Annotated[int | None, Query()] = None,
    points: Annotated[int, within(LEAST_POINTS, MOST_USAGE_POINTS)] = USAGE_POINTS,
) -> UsageView:
    return cases.usage.view(project, job_id, run, points)


@router.get("/projects/{project}/jobs/{job_id}/metrics", Access.VIEWER, "its curves", response_model=MetricsView)
def metrics(
    project: str,
    job_id: str,
    cases: Cases,
    name: Annotated[tuple[str, ...], Query()] = (),
    task: str = "",
    from_step: int | None = None,
    to_step: int | None = None,
    points: Annotated[int, within(LEAST, MOST_POINTS)] = DEFAULT_POINTS,
    after: str = "",
) -> Response:
    """Each curve between two steps (inclusive), reduced to at most `points` points that keep its
    peaks."""
    query = MetricsQuery(name, task, from_step, to_step, points, after)
    view = cases.metrics.view(project, job_id, query)
    return Response(view.model_dump_json(), media_type="application/json", headers={"Cache-Control": "no-store"})


@router.get(
    "/projects/{project}/jobs/{job_id}/metrics.csv", Access.VIEWER, "the same as a table", response_class=CsvStream
)
def metrics_csv(project: str, job_id: str, cases: Cases) -> StreamingResponse:
    """Every point of every run: run, task, name, step, time, value."""
    rows = cases.metrics.rows(project, job_id)
    return CsvStream(
        csv_blocks(chain([HEADER], rows)),
        headers={"Cache-Control": "no-store", "Content-Disposition": f'attachment; filename="{job_id}-metrics.csv"'},
    )
