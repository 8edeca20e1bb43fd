"""Routes of MLflow's REST API, those that its clients call while a program trains and while people read.

A program calls with the token of its run. Everything else of MLflow answers 501, with a sentence.
"""

from typing import Annotated, Any

from fastapi import Request

from trainyard_protocol.errors import InvalidArgument, Unimplemented
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, json_of, large_json_of
from trainyard_server.api.middleware.csrf import bearer
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import UNRECORDED, Access
from trainyard_server.services.tracking.messages import (
    ArtifactList,
    CreateRun,
    ExperimentId,
    Experiments,
    FoundRuns,
    LoggedBatch,
    LogMetric,
    LogParam,
    MetricHistory,
    NamedExperiment,
    NothingToSay,
    OfRun,
    OneExperiment,
    OneRun,
    SearchExperiments,
    SearchRuns,
    UpdatedRun,
    UpdateRun,
)
from trainyard_server.services.tracking.tracking import no_artifacts

_MAX_BATCH = 1 << 20  # bytes, as MLflow's server has it

router = Router(prefix="/api/2.0")

Json = dict[str, Any]

_ANY_BODY = {"requestBody": {"required": False, "content": {"application/octet-stream": {}}}}


@router.get(
    "/mlflow/experiments/get-by-name",
    Access.PERSON,
    "MLflow: an experiment, which is a project",
    response_model=OneExperiment,
)
def experiment_by_name(cases: Cases, caller: AuthenticatedCaller, experiment_name: str) -> Json:
    return {"experiment": cases.tracking.experiment(caller, name=experiment_name)}


@router.get("/mlflow/experiments/get", Access.PERSON, "MLflow: an experiment by its id", response_model=OneExperiment)
def experiment(cases: Cases, caller: AuthenticatedCaller, experiment_id: str) -> Json:
    return {"experiment": cases.tracking.experiment(caller, wanted_id=experiment_id)}


@router.post(
    "/mlflow/experiments/create",
    Access.PERSON,
    "MLflow: the experiment of a job's project",
    UNRECORDED,
    response_model=ExperimentId,
)
def create_experiment(
    body: Annotated[NamedExperiment, json_of(NamedExperiment)], cases: Cases, caller: AuthenticatedCaller
) -> Json:
    """The project of the calling job, whatever name it asks for. People make projects with their first job."""
    found = cases.tracking.experiment(caller, name=body.name)
    return {"experiment_id": found["experiment_id"]}


@router.post(
    "/mlflow/experiments/search",
    Access.PERSON,
    "MLflow: the projects that one sees",
    UNRECORDED,
    response_model=Experiments,
)
def search_experiments(
    body: Annotated[SearchExperiments, json_of(SearchExperiments)], cases: Cases, caller: AuthenticatedCaller
) -> Json:
    if body.filter:
        raise InvalidArgument("Experiments cannot be filtered here: leave the filter out.")
    return {"experiments": cases.tracking.experiments(caller)}


@router.post(
    "/mlflow/runs/create",
    Access.PERSON,
    "MLflow: a further run of the calling job",
    UNRECORDED,
    response_model=OneRun,
    response_model_exclude_none=True,
)
def create_run(body: Annotated[CreateRun, json_of(CreateRun)], request: Request, cases: Cases) -> Json:
    """A further run, whose metrics and parameters its job has with the run's name before theirs."""
    return {"run": cases.tracking.create_run(bearer(request), body)}


@router.get(
    "/mlflow/runs/get",
    Access.PERSON,
    "MLflow: a run, which is a job",
    response_model=OneRun,
    response_model_exclude_none=True,
)
def get_run(cases: Cases, caller: AuthenticatedCaller, run_id: str = "", run_uuid: str = "") -> Json:
    return {"run": cases.tracking.run(caller, run_id or run_uuid)}


@router.post(
    "/mlflow/runs/update",
    Access.PERSON,
    "MLflow: the status of a run",
    UNRECORDED,
    response_model=UpdatedRun,
    response_model_exclude_none=True,
)
def update_run(body: Annotated[UpdateRun, json_of(UpdateRun)], request: Request, cases: Cases) -> Json:
    """Set the status of a further run; a job's own follows its program."""
    return {"run_info": cases.tracking.update_run(bearer(request), body.wanted, body.status)["info"]}


@router.post(
    "/mlflow/runs/search",
    Access.PERSON,
    "MLflow: the jobs of projects",
    UNRECORDED,
    response_model=FoundRuns,
    response_model_exclude_none=True,
)
def search_runs(body: Annotated[SearchRuns, json_of(SearchRuns)], cases: Cases, caller: AuthenticatedCaller) -> Json:
    """The newest jobs first, whatever order is asked for."""
    if body.filter:
        raise InvalidArgument("Runs cannot be filtered here: leave the filter out, or use jobs list --filter.")
    runs, token = cases.tracking.search(caller, body.experiment_ids, min(body.max_results, 1000), body.page_token)
    return {"runs": runs} | ({"next_page_token": token} if token else {})


@router.post(
    "/mlflow/runs/log-metric", Access.PERSON, "MLflow: a value of a metric", UNRECORDED, response_model=NothingToSay
)
def log_metric(body: Annotated[LogMetric, json_of(LogMetric)], request: Request, cases: Cases) -> Json:
    cases.tracking.log(bearer(request), body.wanted, metrics=[body])
    return {}


@router.post(
    "/mlflow/runs/log-parameter", Access.PERSON, "MLflow: a parameter", UNRECORDED, response_model=NothingToSay
)
def log_parameter(body: Annotated[LogParam, json_of(LogParam)], request: Request, cases: Cases) -> Json:
    cases.tracking.log(bearer(request), body.wanted, params=[body])
    return {}


@router.post(
    "/mlflow/runs/log-batch", Access.PERSON, "MLflow: metrics and parameters", UNRECORDED, response_model=NothingToSay
)
def log_batch(
    body: Annotated[LoggedBatch, large_json_of(LoggedBatch, _MAX_BATCH)], request: Request, cases: Cases
) -> Json:
    cases.tracking.log(bearer(request), body.run_id, body.metrics, body.params)
    return {}


@router.post(
    "/mlflow/runs/set-tag", Access.PERSON, "MLflow: a tag, which is not kept", UNRECORDED, response_model=NothingToSay
)
def set_tag(body: Annotated[LogParam, json_of(LogParam)], request: Request, cases: Cases) -> Json:
    """Accepted and not kept: labels and the note of a job are for people."""
    cases.tracking.check_own(bearer(request), body.wanted)
    return {}


@router.post(
    "/mlflow/runs/log-inputs",
    Access.PERSON,
    "MLflow: data sets, which are not kept",
    UNRECORDED,
    response_model=NothingToSay,
)
def log_inputs(body: Annotated[OfRun, large_json_of(OfRun, _MAX_BATCH)], request: Request, cases: Cases) -> Json:
    cases.tracking.check_own(bearer(request), body.wanted)
    return {}


@router.get(
    "/mlflow/metrics/get-history", Access.PERSON, "MLflow: the logged points of a metric", response_model=MetricHistory
)
def history(cases: Cases, caller: AuthenticatedCaller, metric_key: str, run_id: str = "", run_uuid: str = "") -> Json:
    return {"metrics": cases.tracking.history(caller, run_id or run_uuid, metric_key)}


@router.get(
    "/mlflow-artifacts/artifacts",
    Access.PERSON,
    "MLflow: artifacts of a job without a job-dir: none",
    response_model=ArtifactList,
)
def artifacts() -> Json:
    return {"files": []}


@router.put(
    "/mlflow-artifacts/artifacts/{path:path}",
    Access.PERSON,
    "MLflow: refused without a job-dir",
    UNRECORDED,
    response_model=NothingToSay,
    openapi_extra=_ANY_BODY,
)
def put_artifact(path: str) -> Json:  # noqa: ARG001 - the route has it
    raise no_artifacts()


def _unimplemented(name: str) -> Json:
    raise Unimplemented(
        f"MLflow's {name} is not implemented here: the tracking of metrics, parameters and runs is "
        "(docs/how-to/metrics.md)."
    )


@router.get(
    "/mlflow/{name:path}", Access.PERSON, "MLflow: anything else is not implemented", response_model=NothingToSay
)
def other_read(name: str) -> Json:
    return _unimplemented(name)


@router.post(
    "/mlflow/{name:path}",
    Access.PERSON,
    "MLflow: anything else is not implemented",
    UNRECORDED,
    response_model=NothingToSay,
    openapi_extra=_ANY_BODY,
)
def other_call(name: str) -> Json:
    return _unimplemented(name)
