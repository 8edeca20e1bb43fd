"""One job at a glance: how it stands and why, its runs and replicas, and how to go on."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request

from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState
from trainyard_protocol.views import JobDetail, ReplicaView, RunView
from trainyard_server.api.dependencies import Cases
from trainyard_server.dashboard.pages.job_header import JOB, job_view
from trainyard_server.dashboard.pages.usage_panel import usage_part
from trainyard_server.dashboard.views import View, add_page
from trainyard_server.domain.lifecycle.timeline import bars, spans
from trainyard_server.storage.events.notifier import usage_topic

router = APIRouter()

_SHOWN_EVENTS = 400


def overview(request: Request, cases: Cases, project: str, job_id: str) -> View:
    def more(detail: JobDetail) -> Mapping[str, Any]:
        now = cases.backend.clock()
        latest = detail.runs[-1] if detail.runs else None
        shown = spans(_created(detail), detail.events)
        primary = latest.replicas[0] if latest and latest.replicas else None
        over = detail.state in FINAL_JOB_STATES
        return {
            "bars": bars(shown, now),
            "commands": _commands(project, job_id, primary),
            "created_at": _created(detail),
            "dropped_events": max(0, len(detail.events) - _SHOWN_EVENTS),
            "ended_at": _moment(detail, "endTime"),
            "events": [event for event in detail.events if event.message or event.after][-_SHOWN_EVENTS:],
            "latest": latest,
            "left_s": None if over or primary is None else seconds_left(primary, now),
            "lost_steps": _at_risk(latest),
            "over": over,
            "primary": primary,
            "shape": cases.listings.shape(project, job_id),
            "silent": [r for r in (latest.replicas if latest else ()) if r.state is ReplicaState.UNKNOWN],
            "spans": shown,
            "stalled": [r for r in (latest.replicas if latest else ()) if r.stall is not None and not over],
            "started_at": _moment(detail, "startTime"),
            "training_input": detail.job["trainingInput"],
            "waits": detail.state is JobState.QUEUED,
            **usage_part(request, cases, project, job_id, latest),
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
    """How long the rest of its steps takes at the pace so far; None where that cannot be told."""
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


def _at_risk(run: RunView | None) -> int | None:
    """How many steps would be trained again if the run ended now; None where nothing is known to be saved."""
    steps = [r.step for r in run.replicas if r.step is not None] if run else []
    durable = [r.durable_step for r in run.replicas if r.durable_step is not None] if run else []
    return max(0, max(steps) - max(durable)) if steps and durable else None


def _commands(project: str, job_id: str, primary: ReplicaView | None) -> Mapping[str, str]:
    """What to type for the same at a terminal."""
    where = f"{job_id} --project {project}"
    task = f" {primary.task}" if primary else ""
    return {
        "describe": f"trainyard jobs describe {where}",
        "stream its log": f"trainyard jobs stream-logs {where}",
        "reproduce a replica by hand": f"trainyard jobs explain {job_id}{task} --project {project}",
    }


def _created(detail: JobDetail) -> datetime:
    return datetime.fromisoformat(detail.job["createTime"])


def _moment(detail: JobDetail, name: str) -> datetime | None:
    said = detail.job.get(name)
    return datetime.fromisoformat(said) if said else None


add_page(router, JOB, overview)
