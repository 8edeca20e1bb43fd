"""Header and tabs of a job's pages."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.api.dependencies import caller_of
from trainyard_server.dashboard.rendering import job_path
from trainyard_server.dashboard.views import View, dashboard_of
from trainyard_server.domain.lifecycle.timeline import is_routine
from trainyard_server.storage.events.notifier import job_topic, progress_topic
from trainyard_server.use_cases import UseCases

JOB = "/projects/{project}/jobs/{job_id}"
"""Path of a job's page; the paths of its tabs begin with it."""

TABS = {"": "Overview", "/logs": "Logs", "/metrics": "Metrics", "/config": "Config", "/files": "Files"}

SHOWN_EVENTS = 400
"""The newest ones, on an overview."""


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
    """A tab of a job's page. The template extends job/base.html; its context has `detail` and the values of `more`.
    `topics` return further topics for the job's key. Raises NotFound.
    """
    key = cases.log_streaming.check(project, job_id)
    caller, pages = caller_of(request), dashboard_of(request).pages

    def read() -> Mapping[str, Any]:
        detail = cases.job_details.detail(project, job_id, with_events, with_trials=False)
        return {
            "detail": detail,
            "job_id": job_id,
            "job_path": job_path(project, job_id),
            "may_change": caller.may_change(project, detail.owner),
            "may_cancel": detail.state not in FINAL_JOB_STATES and caller.may_change(project, detail.owner),
            "now": cases.backend.clock(),
            "project": project,
            "tabs": [
                Tab(word, job_path(project, job_id) + below, below == tab)
                for below, word in TABS.items()
                if JOB + below in pages and (below != "/metrics" or not detail.is_study)  # its trials have the curves
            ],
            **more(detail),
        }

    slow_topics = (progress_topic(key), *(topic(key) for topic in topics))
    return View(template, read, (job_topic(key),), slow_topics)


def events_context(detail: JobDetail) -> Mapping[str, Any]:
    """The context of job/_events.html: each event with whether it is routine, the newest first."""
    events = [event for event in detail.events if event.message or event.after or event.kind == "labels"]
    shown = [(event, is_routine(event)) for event in reversed(events[-SHOWN_EVENTS:])]
    return {
        "dropped_events": len(events) - len(shown),
        "events": shown,
        "has_routine": any(routine for _, routine in shown),
    }
