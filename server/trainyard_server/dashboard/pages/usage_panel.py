"""What the replicas of a job use over time, as a part of a page: `templates/job/_usage.html`."""

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from trainyard_protocol.views import RunView
from trainyard_server.api.dependencies import UseCases
from trainyard_server.dashboard.usage_charts import UsageCharts, usage_charts

_REPLICAS = 12
"""That are shown at once."""

_POINTS = 150
"""Of each replica."""


def usage_part(
    request: Request, cases: UseCases, project: str, job_id: str, run: RunView | None
) -> Mapping[str, Any]:
    """The part's context. Of a large gang a page of replicas, which `replicas` of the address chooses."""
    tasks = [replica.task for replica in run.replicas] if run is not None else []
    pages = max(1, -(-len(tasks) // _REPLICAS))
    chosen = request.query_params.get("replicas", "")
    page = min(max(1, int(chosen)), pages) if chosen.isdecimal() and len(chosen) < 7 else 1
    charts = UsageCharts(())
    if run is not None:
        shown = tasks[(page - 1) * _REPLICAS : page * _REPLICAS]
        charts = usage_charts(cases.measuring.view(project, job_id, run.number, _POINTS, shown))
    return {"usage": charts, "usage_page": page, "usage_pages": pages}
