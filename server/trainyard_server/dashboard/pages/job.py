"""Overview page of a job: its state and why, progress, usage, runs, replicas and events."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request

from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState
from trainyard_protocol.views import JobDetail, ReplicaView, RunView
from trainyard_server.api.dependencies import Cases, UseCases
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.usage_charts import UsageCharts, usage_charts
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.lifecycle.timeline import bars, spans
from trainyard_server.storage.events.notifier import usage_topic

router = APIRouter()

_SHOWN_EVENTS = 400
_CHARTED_REPLICAS = 12  # on one page of the usage charts
_CHART_POINTS = 150  # of each replica


def overview(request: Request, cases: Cases, project: str, job_id: str) -> View:
    def more(detail: JobDetail) -> Mapping[str, Any]:
        now = cases.backend.clock()
        latest = detail.runs[-1] if detail.runs else None
        shown = spans(_created(detail), detail.events)
        primary = latest.replicas[0] if latest and latest.replicas else None
        is_final = detail.state in FINAL_JOB_STATES
        return {
            "bars": bars(shown, now),
            "commands": _commands(project, job_id, primary),
            "created_at": _created(detail),
            "dropped_events": max(0, len(detail.events) - _SHOWN_EVENTS),
            "ended_at": _time(detail, "endTime"),
            "events": [event for event in detail.events if event.message or event.after][-_SHOWN_EVENTS:],
            "latest": latest,
            "left_s": None if is_final or primary is None else seconds_left(primary, now),
            "steps_at_risk": _steps_at_risk(latest),
            "is_final": is_final,
            "primary": primary,
            "shape": cases.job_search.shape(project, job_id),
            "silent": [r for r in (latest.replicas if latest else ()) if r.state is ReplicaState.UNKNOWN],
            "spans": shown,
            "stalled": [
                r for r in (latest.replicas if latest else ()) if r.stall is not None and not is_final
            ],
            "started_at": _time(detail, "startTime"),
            "training_input": detail.job["trainingInput"],
            "waits": detail.state is JobState.QUEUED,
            **_usage(request, cases, project, job_id, latest),
        }

    return job_view(
        request,
        cases,
        project,
        job_id,
        tab="",
        template="job/overview.html",
        more=more,
        topics=(usage_topic,),
        with_events=True,
    )


def seconds_left(replica: ReplicaView, now: datetime) -> float | None:
    """Time for the remaining steps at the pace so far; None where that is unknown."""
    if replica.state is not ReplicaState.RUNNING or None in (replica.steps, replica.step, replica.step_at):
        return None
    assert replica.steps is not None
    assert replica.step is not None
    assert replica.step_at is not None
    first = replica.first_step or 0
    if replica.started_at is None or replica.step <= first or replica.step >= replica.steps:
        return None
    pace = (replica.step_at - replica.started_at).total_seconds() / (replica.step - first)
    since = (now - replica.step_at).total_seconds()
    return max(0.0, pace * (replica.steps - replica.step) - since)


def _steps_at_risk(run: RunView | None) -> int | None:
    """Steps that would be trained again if the run ended now; None where no step is known to be saved."""
    steps = [r.step for r in run.replicas if r.step is not None] if run else []
    durable = [r.durable_step for r in run.replicas if r.durable_step is not None] if run else []
    return max(0, max(steps) - max(durable)) if steps and durable else None


def _usage(
    request: Request, cases: UseCases, project: str, job_id: str, run: RunView | None
) -> Mapping[str, Any]:
    """The context of job/_usage.html. The query's `replicas` is the page of a gang that has several."""
    tasks = [replica.task for replica in run.replicas] if run is not None else []
    pages = max(1, -(-len(tasks) // _CHARTED_REPLICAS))
    chosen = request.query_params.get("replicas", "")
    page = min(max(1, int(chosen)), pages) if chosen.isdecimal() and len(chosen) < 7 else 1
    charts = UsageCharts(())
    if run is not None:
        shown = tasks[(page - 1) * _CHARTED_REPLICAS : page * _CHARTED_REPLICAS]
        charts = usage_charts(cases.usage.view(project, job_id, run.number, _CHART_POINTS, shown))
    return {"usage": charts, "usage_page": page, "usage_pages": pages}


def _commands(project: str, job_id: str, primary: ReplicaView | None) -> Mapping[str, str]:
    """Commands for a terminal, by title."""
    job = f"{job_id} --project {project}"
    task = f" {primary.task}" if primary else ""
    return {
        "describe": f"trainyard jobs describe {job}",
        "stream its log": f"trainyard jobs stream-logs {job}",
        "reproduce a replica by hand": f"trainyard jobs explain {job_id}{task} --project {project}",
    }


def _created(detail: JobDetail) -> datetime:
    return datetime.fromisoformat(detail.job["createTime"])


def _time(detail: JobDetail, name: str) -> datetime | None:
    value = detail.job.get(name)
    return datetime.fromisoformat(value) if value else None


add_page(router, JOB, overview)
