"""Routes of comparisons: jobs beside each other, and the curves of several jobs."""

from typing import Annotated

from fastapi import Query, Response

from trainyard_protocol.answers.comparison import ComparisonView, CurvesView
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, within
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.experiments.comparisons import Comparisons, job_names
from trainyard_server.domain.access.route_access import Access
from trainyard_server.domain.metrics.series import LEAST
from trainyard_server.services.measurements.metrics import ANSWER_POINTS, DEFAULT_POINTS, MetricsQuery

router = Router(prefix="/trainyard/v1")

JobNames = Annotated[tuple[str, ...], Query()]
"""Jobs, each as PROJECT/JOB."""


@router.get("/jobs:compare", Access.PERSON, "jobs beside each other: in what they differ, what they measured")
def compare(cases: Cases, caller: AuthenticatedCaller, job: JobNames = (), metric: str = "") -> ComparisonView:
    """2 to 50 jobs beside each other, judged by a metric or by the most important one."""
    return cases.of(Comparisons).view(job_names(caller, job), metric)


@router.get("/metrics", Access.PERSON, "the curves of up to 50 jobs", response_model=CurvesView)
def curves(
    cases: Cases,
    caller: AuthenticatedCaller,
    job: JobNames = (),
    name: Annotated[tuple[str, ...], Query()] = (),
    points: Annotated[int, within(LEAST, ANSWER_POINTS)] = ANSWER_POINTS // 2,
) -> Response:
    """The curves of several jobs with at most about `points` points in all, and 1,000 each."""
    names = job_names(caller, job, fewest=1)
    view = cases.metrics.views(names, MetricsQuery(name, points=DEFAULT_POINTS), points)
    return Response(view.model_dump_json(), media_type="application/json", headers={"Cache-Control": "no-store"})
