"""Routes of MLflow's REST API about experiments, runs and metrics, which its clients call while a program trains and
while people read.

A program calls with the token of its run. Models and artifacts have modules of their own; what is not implemented is in
`mlflow_rest`.
"""

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.middleware.csrf import bearer
from trainyard_server.capabilities.tracking.messages import (
    CreateRun,
    DeleteTag,
    ExperimentId,
    Experiments,
    FoundRuns,
    LoggedBatch,
    LogInputs,
    LogMetric,
    LogModelText,
    LogOutputs,
    LogParam,
    MetricHistory,
    NamedExperiment,
    OfRun,
    OneExperiment,
    OneRun,
    SearchExperiments,
    SearchRuns,
    UpdatedRun,
    UpdateRun,
)
from trainyard_server.capabilities.tracking.points import MAX_HISTORY
from trainyard_server.capabilities.tracking.router import MlflowRouter
from trainyard_server.capabilities.tracking.search.run_search import RunSearch
from trainyard_server.capabilities.tracking.tracking import Tracking

_MAX_BODY = 1 << 20  # bytes, as MLflow's server has it
_MAX_INPUTS = 1 << 22  # with the schemas and profiles of data sets

router = MlflowRouter(body_limit=_MAX_BODY)

Json = dict[str, Any]


@router.call("GET", "/mlflow/experiments/get-by-name", "an experiment, which is a project", OneExperiment)
def experiment_by_name(cases: Cases, caller: AuthenticatedCaller, experiment_name: str) -> Json:
    return {"experiment": cases.of(RunSearch).experiment(caller, name=experiment_name)}


@router.call("GET", "/mlflow/experiments/get", "an experiment by its id", OneExperiment)
def experiment(cases: Cases, caller: AuthenticatedCaller, experiment_id: str) -> Json:
    return {"experiment": cases.of(RunSearch).experiment(caller, wanted_id=experiment_id)}


@router.call("POST", "/mlflow/experiments/create", "the experiment of a job's project", ExperimentId)
def create_experiment(body: NamedExperiment, cases: Cases, caller: AuthenticatedCaller) -> Json:
    """The project of the calling job, whatever name it asks for. People make projects with their first job."""
    found = cases.of(RunSearch).experiment(caller, name=body.name)
    return {"experiment_id": found["experiment_id"]}


@router.call("POST", "/mlflow/experiments/search", "the projects that you see", Experiments)
def search_experiments(body: SearchExperiments, cases: Cases, caller: AuthenticatedCaller) -> Json:
    found, token = cases.of(RunSearch).experiments(caller, body)
    return {"experiments": found, "next_page_token": token or None}


@router.call("POST", "/mlflow/runs/create", "a further run of the calling job", OneRun)
def create_run(body: CreateRun, request: Request, cases: Cases) -> Json:
    """A further run, whose metrics and parameters its job has with the run's name before theirs."""
    return {"run": cases.of(Tracking).create_run(bearer(request), body)}


@router.call("GET", "/mlflow/runs/get", "a run, which is a job", OneRun)
def get_run(
    request: Request, cases: Cases, caller: AuthenticatedCaller, run_id: str = "", run_uuid: str = ""
) -> Response:
    return JSONResponse({"run": cases.of(Tracking).run(caller, bearer(request), run_id or run_uuid)})


@router.call("POST", "/mlflow/runs/update", "the status and the name of a run", UpdatedRun)
def update_run(body: UpdateRun, request: Request, cases: Cases) -> Json:
    """Set the name of a run, and the status of a further one; a job's own follows its program."""
    return {"run_info": cases.of(Tracking).update_run(bearer(request), body)["info"]}


@router.call("POST", "/mlflow/runs/delete", "delete a further run")
def delete_run(body: OfRun, request: Request, cases: Cases) -> Json:
    """Delete a further run. The job's own is deleted with its job."""
    cases.of(Tracking).delete_run(bearer(request), body.wanted)
    return {}


@router.call("POST", "/mlflow/runs/restore", "restore a further run")
def restore_run(body: OfRun, request: Request, cases: Cases) -> Json:
    """Restore a further run that was deleted."""
    cases.of(Tracking).delete_run(bearer(request), body.wanted, restore=True)
    return {}


@router.call("POST", "/mlflow/runs/search", "the runs of projects", FoundRuns)
def search_runs(body: SearchRuns, request: Request, cases: Cases, caller: AuthenticatedCaller) -> Response:
    """The runs that a filter finds, the newest first unless another order is asked for."""
    runs, token = cases.of(RunSearch).runs(caller, bearer(request), body)
    return JSONResponse({"runs": runs} | ({"next_page_token": token} if token else {}))


@router.call("POST", "/mlflow/runs/log-metric", "a value of a metric")
def log_metric(body: LogMetric, request: Request, cases: Cases) -> Json:
    cases.of(Tracking).log(bearer(request), body.wanted, metrics=[body])
    return {}


@router.call("POST", "/mlflow/runs/log-parameter", "a parameter")
def log_parameter(body: LogParam, request: Request, cases: Cases) -> Json:
    cases.of(Tracking).log(bearer(request), body.wanted, params=[body])
    return {}


@router.call("POST", "/mlflow/runs/log-batch", "metrics, parameters and tags")
def log_batch(body: LoggedBatch, request: Request, cases: Cases) -> Json:
    may_change = body.change_params
    cases.of(Tracking).log(bearer(request), body.run_id, body.metrics, body.params, body.tags, may_change=may_change)
    return {}


@router.call("POST", "/mlflow/runs/set-tag", "a tag")
def set_tag(body: LogParam, request: Request, cases: Cases) -> Json:
    """A tag of a run; the labels and the note of a job are for people."""
    cases.of(Tracking).log(bearer(request), body.wanted, tags=[body])
    return {}


@router.call("POST", "/mlflow/runs/delete-tag", "delete a tag")
def delete_tag(body: DeleteTag, request: Request, cases: Cases) -> Json:
    cases.of(Tracking).delete_tag(bearer(request), body.wanted, body.key)
    return {}


@router.call("POST", "/mlflow/runs/log-inputs", "data sets of a run", body_limit=_MAX_INPUTS)
def log_inputs(body: LogInputs, request: Request, cases: Cases) -> Json:
    cases.of(Tracking).log_inputs(bearer(request), body)
    return {}


@router.call("POST", "/mlflow/runs/outputs", "models of a run")
def log_outputs(body: LogOutputs, request: Request, cases: Cases) -> Json:
    cases.of(Tracking).log_outputs(bearer(request), body.wanted, body.models)
    return {}


@router.call("POST", "/mlflow/runs/log-model", "a model of older clients, which is a tag")
def log_model(body: LogModelText, request: Request, cases: Cases) -> Json:
    cases.of(Tracking).log_model(bearer(request), body.wanted, body.model_json)
    return {}


@router.call("GET", "/mlflow/metrics/get-history", "the logged points of a metric", MetricHistory)
def history(
    cases: Cases,
    caller: AuthenticatedCaller,
    metric_key: str,
    run_id: str = "",
    run_uuid: str = "",
    max_results: int = MAX_HISTORY,
    page_token: str = "",
) -> Response:
    """A page of points, in the order in which they were logged: at most 25,000, fewer where many others are between."""
    wanted = run_id or run_uuid
    parts = cases.of(Tracking).history(caller, wanted, metric_key, max_results, page_token)
    return StreamingResponse(parts, media_type="application/json")
