"""Routes of experiments: the table of jobs as CSV, its groups, saved views, and notes about jobs."""

from typing import Annotated

from fastapi import Depends, Query
from fastapi.responses import StreamingResponse

from trainyard_protocol.answers.experiments import JobNote, NoteRequest, SavedView, SavedViewList, SavedViewRequest
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.measurements.csv_text import csv_blocks
from trainyard_server.services.views.job_search import JobSearchRequest

CSV_JOBS = 10_000
"""Limit of jobs in one CSV."""

router = Router(prefix="/trainyard/v1")


def search_request(
    q: str = "",
    project: str = "",
    owner: str = "",
    state: Annotated[tuple[str, ...], Query()] = (),
    label: Annotated[tuple[str, ...], Query()] = (),
    since: str = "",
    until: str = "",
    needs_attention: Annotated[bool, Query(alias="trouble")] = False,
    sort: str = "-created",
    page: int = 1,
    filter_text: Annotated[str, Query(alias="filter")] = "",
) -> JobSearchRequest:
    """The search of an address of the list of jobs."""
    return JobSearchRequest(
        q, project, owner, state, label, since, until, needs_attention, sort, page, filter_text.strip()
    )


Search = Annotated[JobSearchRequest, Depends(search_request)]
Columns = Annotated[tuple[str, ...], Query(alias="column")]


class JobsCsv(StreamingResponse):
    media_type = "text/csv; charset=utf-8"


@router.get("/jobs.csv", Access.PERSON, "jobs with their parameters and metrics as a table", response_class=JobsCsv)
def jobs_csv(cases: Cases, caller: AuthenticatedCaller, search: Search, columns: Columns = ()) -> StreamingResponse:
    """The matching jobs, at most 10,000, with the columns of the list's address."""
    rows = cases.run_tables.rows(caller.visible, search, columns, CSV_JOBS)
    headers = {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="jobs.csv"'}
    return JobsCsv(csv_blocks(rows), headers=headers)


@router.get("/views", Access.PERSON, "the saved views of the list of jobs")
def saved_views(cases: Cases, caller: AuthenticatedCaller, project: str = "") -> SavedViewList:
    """The saved views of the projects that the caller sees, or of one of them; 1,000 at most."""
    return SavedViewList(views=tuple(cases.saved_views.list(caller.visible, project)))


@router.get("/projects/{project}/views/{name}", Access.VIEWER, "a saved view")
def saved_view(project: str, name: str, cases: Cases) -> SavedView:
    return cases.saved_views.get(project, name)


@router.put("/projects/{project}/views/{name}", Access.SUBMITTER, "save a view of the list of jobs", "views.save")
def save_view(project: str, name: str, body: SavedViewRequest, cases: Cases, caller: AuthenticatedCaller) -> SavedView:
    """Save an address of the list of jobs under a name for the project."""
    return cases.saved_views.save(caller, project, name, body.query)


@router.delete("/projects/{project}/views/{name}", Access.SUBMITTER, "delete a saved view", "views.delete")
def delete_view(project: str, name: str, cases: Cases, caller: AuthenticatedCaller) -> dict[str, str]:
    cases.saved_views.delete(caller, project, name)
    return {}


@router.put(
    "/projects/{project}/jobs/{job_id}/note", Access.SUBMITTER, "set the note of your own job", "jobs.note", own=True
)
def set_note(project: str, job_id: str, body: NoteRequest, cases: Cases, caller: AuthenticatedCaller) -> JobNote:
    """Set the note about a job, for people; an empty one removes it."""
    return JobNote(note=cases.jobs.set_note(caller, project, job_id, body.note))
