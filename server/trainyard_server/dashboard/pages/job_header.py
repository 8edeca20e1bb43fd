"""What every tab of a job's page has above it: what the job is, how it stands, and what can be done with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_protocol.views import JobDetail
from trainyard_server.api.dependencies import UseCases, asker_of
from trainyard_server.dashboard.rendering import job_path
from trainyard_server.dashboard.views import View
from trainyard_server.storage.events.notifier import PROGRESS_TOPIC, job_topic

JOB = "/projects/{project}/jobs/{job_id}"
"""Where a job's page is; its tabs are below."""

TABS = {"": "Overview", "/logs": "Logs", "/metrics": "Metrics", "/config": "Config", "/files": "Files"}


@dataclass(frozen=True, slots=True)
class Tab:
    word: str
    path: str
    current: bool


def job_view(
    request: Request,
    cases: UseCases,
    project: str,
    job_id: str,
    *,
    tab: str,
    template: str,
    more: Callable[[JobDetail], Mapping[str, Any]] = lambda _detail: {},
    topics: tuple[Callable[[int], str], ...] = (),
    with_events: bool = False,
) -> View:
    """A tab of a job's page. The template extends job/base.html, and gets `detail` and what `more` says; `topics`
    make of the job's key what else calls for another look.

    Raises NotFound for a job that is not there.
    """
    key = cases.streaming.check(project, job_id)
    caller = asker_of(request)

    def look() -> Mapping[str, Any]:
        detail = cases.explaining.detail(project, job_id, with_events)
        return {
            "detail": detail,
            "job_id": job_id,
            "job_path": job_path(project, job_id),
            "may_cancel": detail.state not in FINAL_JOB_STATES and caller.may_change(detail.owner),
            "now": cases.backend.clock(),
            "project": project,
            "tabs": [
                Tab(word, job_path(project, job_id) + below, below == tab) for below, word in TABS.items()
            ],
            **more(detail),
        }

    return View(template, look, (job_topic(key), PROGRESS_TOPIC, *(topic(key) for topic in topics)))
