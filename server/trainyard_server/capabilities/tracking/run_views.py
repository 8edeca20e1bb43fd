"""Runs of MLflow as its JSON."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from trainyard_protocol.job.parameters import MAX_PARAMETER_NAME
from trainyard_protocol.states import FINAL_JOB_STATES
from trainyard_server.capabilities.tracking import store
from trainyard_server.capabilities.tracking.search.run_queries import STATUSES
from trainyard_server.capabilities.tracking.store import RunValues, ValueKind
from trainyard_server.capabilities.tracking.tables import TrackedRunRow
from trainyard_server.capabilities.tracking.targets import RunAccess, RunTarget, experiment_id, run_id
from trainyard_server.domain.metrics.summary import MetricSummary
from trainyard_server.storage.db.queries.reader import Reader
from trainyard_server.storage.db.tables import job_values
from trainyard_server.storage.db.tables.job_values import JobValues

Json = dict[str, Any]


class ShownRun(NamedTuple):
    """The values of a run under their own names."""

    metrics: Mapping[str, MetricSummary]
    params: Mapping[str, str]
    values: RunValues


def runs_json(
    reader: Reader, access: RunAccess, targets: Sequence[RunTarget], own_key: int | None = None
) -> list[Json]:
    """These runs with their values. `own_key`: the key of the job that calls."""
    keys = {target.job.key for target in targets}
    of_jobs = job_values.values_of(reader, keys, None, None)
    others = store.further_runs(reader, keys)
    values = store.values(reader, [(target.job.key, target.number) for target in targets])
    return [
        run_json(
            target,
            _shown(target, of_jobs[target.job.key], others[target.job.key], values[target.job.key, target.number]),
            access.artifact_uri(target, own_key),
        )
        for target in targets
    ]


def run_json(target: RunTarget, shown: ShownRun, artifact_uri: str) -> Json:
    job, further = target.job, target.further
    tags = {**_default_tags(target), **shown.values.get(ValueKind.TAG, {})}
    started = further.started_at if further is not None else job.started_at or job.created_at
    status, ended = _end(target)
    is_deleted = further is not None and further.deleted_at is not None
    info: Json = {
        "run_id": target.run_id,
        "run_uuid": target.run_id,
        "run_name": tags["mlflow.runName"],
        "experiment_id": experiment_id(job.project),
        "user_id": job.owner,
        "status": status,
        "start_time": time_ms(started),
        "artifact_uri": artifact_uri,
        "lifecycle_stage": "deleted" if is_deleted else "active",
    }
    if ended is not None:
        info["end_time"] = time_ms(ended)
    data = {
        "metrics": [_metric(key, summary, started) for key, summary in shown.metrics.items()],
        "params": pairs(shown.params),
        "tags": pairs(tags),
    }
    return {"info": info, "data": data, "inputs": _inputs(shown.values), "outputs": _outputs(shown.values)}


def pairs(values: Mapping[str, str]) -> list[Json]:
    """Texts by name, as MLflow has them."""
    return [{"key": key, "value": value} for key, value in values.items()]


def time_ms(time: datetime) -> int:
    """The milliseconds since 1970."""
    return int(time.timestamp() * 1000)


def _end(target: RunTarget) -> tuple[str, datetime | None]:
    """The status of a run, and when it ended. A further run that is open ends with its job."""
    job, further = target.job, target.further
    if further is not None and (further.status != "RUNNING" or job.state not in FINAL_JOB_STATES):
        return further.status, further.ended_at
    return STATUSES.get(job.state, "RUNNING"), job.ended_at if job.state in FINAL_JOB_STATES else None


def _metric(key: str, summary: MetricSummary, started: datetime) -> Json:
    value: float | str = "NaN" if summary.last is None else summary.last
    return {"key": key, "value": value, "step": summary.step, "timestamp": summary.time_ms or time_ms(started)}


def _inputs(values: RunValues) -> Json:
    datasets = [json.loads(text) for text in values.get(ValueKind.INPUT, {}).values()]
    models = [{"model_id": name} for name in values.get(ValueKind.MODEL_INPUT, {})]
    return ({"dataset_inputs": datasets} if datasets else {}) | ({"model_inputs": models} if models else {})


def _outputs(values: RunValues) -> Json:
    models = [{"model_id": name, "step": int(step)} for name, step in values.get(ValueKind.MODEL_OUTPUT, {}).items()]
    return {"model_outputs": models} if models else {}


def _default_tags(target: RunTarget) -> dict[str, str]:
    """The tags that a run has unless its program has set them."""
    name = target.further.name if target.further is not None else target.job.job_id
    tags = {**target.job.labels, "mlflow.runName": name, "mlflow.user": target.job.owner}
    if target.further is None and target.job.study_key is not None:
        tags["mlflow.parentRunId"] = run_id(target.job.study_key)
    return tags


def _shown(target: RunTarget, of_job: JobValues, others: Sequence[TrackedRunRow], values: RunValues) -> ShownRun:
    before = () if target.further is not None else tuple(f"{run.name}/" for run in others)
    logged = values.get(ValueKind.PARAM, {})
    cut = {f"{target.prefix}{name}"[:MAX_PARAMETER_NAME] for name in logged}
    params = {name: value for name, value in of_job.parameters.items() if name not in cut}
    metrics = _own(of_job.metrics, target.prefix, before)
    return ShownRun(metrics, dict(sorted({**_own(params, target.prefix, before), **logged}.items())), values)


def _own(values: Mapping[str, Any], prefix: str, before: tuple[str, ...]) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix) and not name.startswith(before or ("\0",))
    }
