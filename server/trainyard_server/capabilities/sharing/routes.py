"""Routes of usage reports."""

from typing import Annotated

from fastapi import Depends, Query
from fastapi.responses import StreamingResponse

from trainyard_protocol.answers.operating.accounting import UsageReport
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.sharing.reports import UsageReports, table
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.measurements.csv_text import csv_blocks

router = Router(prefix="/trainyard/v1")


def report_of(
    cases: Cases,
    caller: AuthenticatedCaller,
    by: Annotated[tuple[str, ...], Query()] = (),
    project: str = "",
    since: str = "",
    until: str = "",
) -> UsageReport:
    return cases.of(UsageReports).report(caller.visible, by, project, since, until)


Report = Annotated[UsageReport, Depends(report_of)]


class UsageCsv(StreamingResponse):
    media_type = "text/csv; charset=utf-8"


@router.get("/usage", Access.PERSON, "CPU-hours, GPU-hours, waits and failures by project, user, month or label")
def usage_report(report: Report) -> UsageReport:
    """The usage of the projects that the caller sees."""
    return report


@router.get("/usage.csv", Access.PERSON, "the same as a table", response_class=UsageCsv)
def usage_csv(report: Report) -> StreamingResponse:
    """The usage of the projects that the caller sees, as CSV."""
    headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="usage.csv"'}
    return UsageCsv(csv_blocks(table(report)), headers=headers)
