"""Files page of a job: its job-dir, one directory at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request

from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_protocol.views.views import JobDetail
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.cached_listing import CachedListing
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.rendering import job_path
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access

router = Router()


@dataclass(frozen=True, slots=True)
class Crumb:
    """A link of the path: a parent directory, or the one that is shown."""

    word: str
    query: str


def files_view(request: Request, cases: Cases, project: str, job_id: str, path: str = "", after: str = "") -> View:
    cached = CachedListing(lambda: cases.job_files.listing(project, job_id, path, after), cases.backend.clock)

    def more(detail: JobDetail) -> Mapping[str, Any]:
        listing, problem = cached(detail.state)
        return {
            "after": after,
            "crumbs": _crumbs(path),
            "download": f"/trainyard/v1{job_path(project, job_id)}/files/content?path=",
            "inside": lambda name: query(f"{path}/{name}" if path else name),
            "job_dir": detail.job_dir,
            "listing": listing,
            "next": query(path, listing.next_page_token) if listing and listing.next_page_token else "",
            "is_final": detail.state in FINAL_JOB_STATES,
            "folder": path,
            "problem": problem.message if problem else "",
            "target": lambda name: quote(f"{path}/{name}" if path else name, safe=""),
        }

    return job_view(request, cases, project, job_id, tab="/files", template="job/files.html", more=more)


def query(path: str, after: str = "") -> str:
    given = {name: value for name, value in (("path", path), ("after", after)) if value}
    return f"?{urlencode(given)}" if given else "?"


def _crumbs(path: str) -> list[Crumb]:
    parts = path.split("/") if path else []
    return [Crumb(word, query("/".join(parts[: number + 1]))) for number, word in enumerate(parts)]


add_page(router, f"{JOB}/files", Access.VIEWER, "its files", files_view)
