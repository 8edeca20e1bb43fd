"""Files pages of a job: its job-dir, one directory at a time, and the preview of a file."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import Request

from trainyard_protocol.answers.files import FileEntry
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.cached_listing import CachedListing
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.previews import MAX_BYTES, Preview, preview
from trainyard_server.dashboard.rendering import job_path
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.access.route_access import Access
from trainyard_server.services.measurements.job_files import DirectorySummary

router = Router()

_SUMMARY_S = 2.0


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
            "archive": f"/trainyard/v1{job_path(project, job_id)}/files/archive?{urlencode({'path': path})}",
            "crumbs": _crumbs(path),
            "download": _content(project, job_id),
            "files_page": _page(project, job_id),
            "inside": lambda name: query(f"{path}/{name}" if path else name),
            "job_dir": detail.job_dir,
            "listing": listing,
            "next": query(path, listing.next_page_token) if listing and listing.next_page_token else "",
            "is_final": detail.state in FINAL_JOB_STATES,
            "folder": path,
            "problem": problem.message if problem else "",
            "summary": lambda: _summary(cases, project, job_id, path),
            "target": lambda name: quote(f"{path}/{name}" if path else name, safe=""),
        }

    return job_view(request, cases, project, job_id, tab="/files", template="job/files.html", more=more)


def file_view(request: Request, cases: Cases, project: str, job_id: str, path: str) -> View:
    folder, _, name = path.rpartition("/")
    page, content = _page(project, job_id), _content(project, job_id)

    def read() -> tuple[FileEntry | None, Preview | None, str]:
        """The entry, its preview, and why there is none."""
        try:
            entry, head = cases.job_files.head(project, job_id, path, MAX_BYTES)
            shown = preview(
                path,
                entry.size or 0,
                head,
                lambda inside: f"{page}/view?{urlencode({'path': inside})}",
                lambda inside: f"{content}{quote(inside, safe='')}",
            )
        except TrainyardError as error:
            return None, None, error.message
        except OSError as error:
            return None, None, f"The file cannot be read: {error.strerror}."
        return entry, shown, ""

    def more(detail: JobDetail) -> Mapping[str, Any]:
        return {
            "crumbs": _crumbs(folder),
            "download": f"{content}{quote(path, safe='')}",
            "file_name": name,
            "files_page": page,
            "inside": query(path),
            "job_dir": detail.job_dir,
            "read": read,  # once a page, and not again while it is open
        }

    return job_view(request, cases, project, job_id, tab="/files", template="job/file.html", more=more)


def _summary(cases: Cases, project: str, job_id: str, path: str) -> DirectorySummary | None:
    """None where the listing says what is wrong, and where counting takes too long."""
    try:
        return cases.job_files.summary(project, job_id, path, _SUMMARY_S)
    except TrainyardError:
        return None


def _page(project: str, job_id: str) -> str:
    return f"{job_path(project, job_id)}/files"


def _content(project: str, job_id: str) -> str:
    return f"/trainyard/v1{job_path(project, job_id)}/files/content?path="


def query(path: str, after: str = "") -> str:
    given = {name: value for name, value in (("path", path), ("after", after)) if value}
    return f"?{urlencode(given)}" if given else "?"


def _crumbs(path: str) -> list[Crumb]:
    parts = path.split("/") if path else []
    return [Crumb(word, query("/".join(parts[: number + 1]))) for number, word in enumerate(parts)]


add_page(router, f"{JOB}/files", Access.VIEWER, "its files", files_view)
add_page(router, f"{JOB}/files/view", Access.VIEWER, "a file of its job-dir", file_view)
