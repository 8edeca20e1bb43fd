"""Overview page of a job: its curve, its state and why, progress, usage, runs, replicas and events."""

import shlex
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fastapi import Request

from trainyard_protocol.answers.jobs import JobDetail, ReplicaView, RunView
from trainyard_protocol.job.parameters import parameters_of
from trainyard_protocol.states import FINAL_JOB_STATES, JobState, ReplicaState
from trainyard_server.api.dependencies import Cases
from trainyard_server.api.routing import Router
from trainyard_server.dashboard.cached_listing import CachedListing
from trainyard_server.dashboard.pages.job_header import JOB, events_context, job_view
from trainyard_server.dashboard.pages.metrics import LINE
from trainyard_server.dashboard.pages.study import study_view
from trainyard_server.dashboard.result_chart import result_chart
from trainyard_server.dashboard.usage_charts import UsageCharts, usage_charts
from trainyard_server.dashboard.views import View, add_page, dashboard_of
from trainyard_server.domain.access.route_access import Access
from trainyard_server.domain.lifecycle.timeline import bars, spans, totals
from trainyard_server.storage.events.notifier import usage_topic
from trainyard_server.use_cases import UseCases

router = Router()

_CHARTED_REPLICAS = 12  # on one page of the usage charts
_CHART_POINTS = 150  # of each replica
_LONGER = ("epochs", "num_epochs", "max_epochs", "num_train_epochs", "steps", "max_steps", "train_steps")
_FILES_TIMEOUT_S = 2.0  # a storage that hangs does not hold up the page


def overview(request: Request, cases: Cases, project: str, job_id: str) -> View:
    if cases.studies.is_study(project, job_id):
        return study_view(request, cases, project, job_id)
    origin = cases.studies.origin(project, job_id)
    success = cases.jobs.last_success_like(project, job_id)
    dashboard = dashboard_of(request)
    files = CachedListing(
        lambda: cases.job_files.listing(project, job_id, timeout_s=_FILES_TIMEOUT_S), cases.backend.clock
    )

    def more(detail: JobDetail) -> Mapping[str, Any]:
        now = cases.backend.clock()
        latest = detail.runs[-1] if detail.runs else None
        shown = spans(_created(detail), detail.events)
        primary = latest.replicas[0] if latest and latest.replicas else None
        is_final = detail.state in FINAL_JOB_STATES
        cards = [(card.template, card.context(cases, project, job_id, detail)) for card in dashboard.job_cards]
        return {
            "bars": bars(shown, now),
            "commands": _commands(
                project, job_id, primary, success, detail.job["trainingInput"], enters=_can_be_entered(cases, detail)
            ),
            "created_at": _created(detail),
            "ended_at": _time(detail, "endTime"),
            "latest": latest,
            "origin": origin,
            "line": LINE,
            "left_s": None if is_final or primary is None else seconds_left(primary),
            "steps_at_risk": _steps_at_risk(latest),
            "is_final": is_final,
            "primary": primary,
            "shape": cases.job_search.shape(project, job_id),
            "silent": [r for r in (latest.replicas if latest else ()) if r.state is ReplicaState.UNKNOWN],
            "totals": totals(shown),
            "stalled": [r for r in (latest.replicas if latest else ()) if r.stall is not None and not is_final],
            "started_at": _time(detail, "startTime"),
            "training_input": detail.job["trainingInput"],
            "waits": detail.state is JobState.QUEUED,
            **_program(detail.job["trainingInput"]),
            "cards": [template for template, _ in cards],
            **{name: value for _, context in cards for name, value in context.items()},
            **_curve(cases, project, job_id),
            **_model(detail.state, files),
            **events_context(detail),
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


def seconds_left(replica: ReplicaView) -> float | None:
    """Time from the last step to the end at the pace so far; None where that is unknown, and while the replica is
    stalled. It does not count down while no step comes."""
    if replica.stall is not None:
        return None
    if replica.state is not ReplicaState.RUNNING or None in (replica.steps, replica.step, replica.step_at):
        return None
    assert replica.steps is not None
    assert replica.step is not None
    assert replica.step_at is not None
    first = replica.first_step or 0
    if replica.started_at is None or replica.step <= first or replica.step >= replica.steps:
        return None
    passed = (replica.step_at - replica.started_at).total_seconds()
    return max(0.0, passed) / (replica.step - first) * (replica.steps - replica.step)


def _steps_at_risk(run: RunView | None) -> int | None:
    """Steps that would be trained again if the run ended now; None where no step is known to be saved."""
    steps = [r.step for r in run.replicas if r.step is not None] if run else []
    durable = [r.durable_step for r in run.replicas if r.durable_step is not None] if run else []
    return max(0, max(steps) - max(durable)) if steps and durable else None


def _usage(request: Request, cases: UseCases, project: str, job_id: str, run: RunView | None) -> Mapping[str, Any]:
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


def _program(training_input: Mapping[str, Any]) -> Mapping[str, str]:
    """The program of the job: its image or module, and its arguments as shell words."""
    return {
        "image": training_input.get("masterConfig", {}).get("imageUri", ""),
        "module": training_input.get("pythonModule", ""),
        "arguments": shlex.join(training_input.get("args", ())),
    }


def _curve(cases: UseCases, project: str, job_id: str) -> Mapping[str, Any]:
    """The metrics of the job and the chart of the main one. `log_error`: why they cannot be read, or ""."""
    try:
        results = cases.metrics.results(project, job_id, _FILES_TIMEOUT_S)
    except OSError as error:
        return {"results": (), "chart": None, "log_error": str(error)}
    return {"results": results, "chart": result_chart(results), "log_error": ""}


def _model(state: JobState, files: CachedListing) -> Mapping[str, Any]:
    """The model of a job that succeeded, with its directory on the page of the job's files."""
    listing = files(state)[0] if state is JobState.SUCCEEDED else None
    model = listing.model if listing is not None else ""
    return {
        "model": model,
        "model_directory": _directory(model, listing.job_dir) if listing is not None and model else None,
    }


def _directory(model: str, job_dir: str) -> str | None:
    """The directory of a model below the job-dir; a model whose name has a dot is a file in it. None elsewhere."""
    root = f"{job_dir.rstrip('/')}/"
    if not model.startswith(root):
        return None
    parent, _, name = model.removeprefix(root).rstrip("/").rpartition("/")
    return parent if "." in name else f"{parent}/{name}".lstrip("/")


def _can_be_entered(cases: UseCases, detail: JobDetail) -> bool:
    """Whether its owner can open a shell in it."""
    allows = cases.backend.settings.one_user or bool(detail.job["trainingInput"].get("enableWebAccess"))
    return allows and detail.state is JobState.RUNNING


def _commands(
    project: str,
    job_id: str,
    primary: ReplicaView | None,
    success: str,
    training_input: Mapping[str, Any],
    *,
    enters: bool,
) -> Mapping[str, str]:
    """Commands for a terminal, by title, the most used first. `success` is the job to compare with; "" without one."""
    job = f"{job_id} --project {project}"
    task = f" {primary.task}" if primary else ""
    shell = {"Open a shell in it": f"trainyard jobs shell {job_id}{task} --project {project}"} if enters else {}
    doubled = _longer(parameters_of(training_input.get("args", ())))
    return {
        **shell,
        "Stream its log": f"trainyard jobs stream-logs {job}",
        "Describe": f"trainyard jobs describe {job}",
        "Show a replica's environment": f"trainyard jobs explain {job_id}{task} --project {project}",
        "Run it by hand": f"trainyard jobs repro {job}",
        "Run it again": f"trainyard jobs rerun {job}",
        **({"Train twice as long": f"trainyard jobs rerun {job} --set-arg {shlex.quote(doubled)}"} if doubled else {}),
        **({"Compare with the last success": f"trainyard jobs diff {success} {job}"} if success else {}),
    }


def _longer(parameters: Mapping[str, str]) -> str:
    """The argument of `jobs rerun --set-arg` that trains twice as long, `epochs=10`; "" where no parameter says how
    long it trains."""
    for name in _LONGER:
        if (value := parameters.get(name, "")).isdecimal() and 0 < int(value) < 10**9:
            return f"{name}={2 * int(value)}"
    return ""


def _created(detail: JobDetail) -> datetime:
    return datetime.fromisoformat(detail.job["createTime"])


def _time(detail: JobDetail, name: str) -> datetime | None:
    value = detail.job.get(name)
    return datetime.fromisoformat(value) if value else None


add_page(router, JOB, Access.VIEWER, "a job's page", overview)
