"""The files of a job: what lies in its job-dir, one directory at a time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request

from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.file_views import FileListing
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_protocol.views import JobDetail
from trainyard_server.api.dependencies import Cases
from trainyard_server.context import Clock
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.rendering import job_path
from trainyard_server.dashboard.views import View, add_page

router = APIRouter()

_KNOWN_FOR_S = 10.0  # what is in a bucket is not asked for at every step of the job


@dataclass(frozen=True, slots=True)
class Crumb:
    """A directory above, and the one that is shown."""

    word: str
    query: str


class _Looking:
    """The listing, asked for anew only when some time has passed or the job stands otherwise."""

    def __init__(self, ask: Callable[[], FileListing], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._known: tuple[FileListing | None, TrainyardError | None] = (None, None)
        self._state: JobState | None = None
        self._asked = self._clock()

    def __call__(self, state: JobState) -> tuple[FileListing | None, TrainyardError | None]:
        passed = (self._clock() - self._asked).total_seconds()
        over = state in FINAL_JOB_STATES
        if state is not self._state or (not over and not 0 <= passed < _KNOWN_FOR_S):
            try:
                self._known = (self._ask(), None)
            except TrainyardError as error:
                self._known = (None, error)
            self._state, self._asked = state, self._clock()
        return self._known


def files_view(
    request: Request, cases: Cases, project: str, job_id: str, path: str = "", after: str = ""
) -> View:
    looking = _Looking(lambda: cases.files.listing(project, job_id, path, after), cases.backend.clock)
    here = job_path(project, job_id)

    def more(detail: JobDetail) -> Mapping[str, Any]:
        listing, problem = looking(detail.state)
        job_dir = str(detail.job["trainingInput"].get("jobDir") or "")
        return {
            "after": after,
            "crumbs": _crumbs(path),
            "download": f"/trainyard/v1{here}/files/content?path=",
            "inside": lambda name: query(f"{path}/{name}" if path else name),
            "job_dir": job_dir,
            "listing": listing,
            "next": query(path, listing.next_page_token) if listing and listing.next_page_token else "",
            "over": detail.state in FINAL_JOB_STATES,
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


add_page(router, f"{JOB}/files", files_view)
