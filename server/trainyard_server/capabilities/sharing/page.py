"""Usage page: hours of CPUs and GPUs, waits and failures, in groups that its address names."""

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Query, Request

from trainyard_server.api.dependencies import Cases, caller_of
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.sharing.reports import UsageReports
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access

router = Router()

_EVERY_S = 60.0


def usage_view(
    request: Request,
    cases: Cases,
    by: Annotated[tuple[str, ...], Query()] = (),
    project: str = "",
    since: str = "",
    until: str = "",
) -> View:
    caller = caller_of(request)
    groups = tuple(filter(None, (name.strip() for text in by for name in text.split(","))))
    filters = {"project": project.strip(), "since": since.strip(), "until": until.strip()}

    def read() -> Mapping[str, Any]:
        report = cases.of(UsageReports).report(caller.visible, groups, **filters)
        given = [("by", group) for group in groups] + [item for item in filters.items() if item[1]]
        most = max((row.gpu_hours for row in report.rows), default=0.0)
        return {
            "by": ", ".join(report.groups),
            "csv": f"/trainyard/v1/usage.csv?{urlencode(given)}",
            "filters": filters,
            "has_gpus": most > 0,
            "report": report,
        }

    return View("sharing/usage.html", read, every_s=_EVERY_S)


add_page(router, "/usage", Access.PERSON, "the page of usage", usage_view)
