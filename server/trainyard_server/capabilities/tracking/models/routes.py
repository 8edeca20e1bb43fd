"""Routes of MLflow's REST API about the models that programs log (`mlflow.sklearn.log_model`)."""

from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from trainyard_server.api.dependencies import AuthenticatedCaller, Cases
from trainyard_server.api.middleware.csrf import bearer
from trainyard_server.capabilities.tracking.artifacts import TrackedArtifacts
from trainyard_server.capabilities.tracking.messages import (
    ArtifactList,
    CreateLoggedModel,
    FinalizeLoggedModel,
    FoundLoggedModels,
    LoggedModelParams,
    LoggedModelTags,
    OneLoggedModel,
    SearchLoggedModels,
)
from trainyard_server.capabilities.tracking.models.logged_models import LoggedModels
from trainyard_server.capabilities.tracking.router import MlflowRouter

_MAX_BODY = 1 << 20
_MODELS = "/mlflow/logged-models"
_MODEL = f"{_MODELS}/{{model_id}}"

router = MlflowRouter(body_limit=_MAX_BODY)

Json = dict[str, Any]


@router.call("POST", _MODELS, "a model of the calling job", OneLoggedModel)
def create(body: CreateLoggedModel, request: Request, cases: Cases) -> Json:
    """A model, whose artifacts the program writes to the job-dir."""
    return {"model": cases.of(LoggedModels).create(bearer(request), body)}


@router.call("POST", f"{_MODELS}/search", "the models of projects", FoundLoggedModels)
def search(body: SearchLoggedModels, request: Request, cases: Cases, caller: AuthenticatedCaller) -> Response:
    """The models that a filter finds, among the 10,000 newest."""
    models, token = cases.of(LoggedModels).search(caller, bearer(request), body)
    return JSONResponse({"models": models} | ({"next_page_token": token} if token else {}))


@router.call("GET", _MODEL, "a model that a program has logged", OneLoggedModel)
def get(
    model_id: str, request: Request, cases: Cases, caller: AuthenticatedCaller, allow_deleted: bool = False
) -> Json:
    return {"model": cases.of(LoggedModels).model(caller, bearer(request), model_id, allow_deleted=allow_deleted)}


@router.call("PATCH", _MODEL, "the status of a model", OneLoggedModel)
def finalize(model_id: str, body: FinalizeLoggedModel, request: Request, cases: Cases) -> Json:
    return {"model": cases.of(LoggedModels).finalize(bearer(request), model_id, body.status)}


@router.call("DELETE", _MODEL, "delete a model")
def delete(model_id: str, request: Request, cases: Cases) -> Json:
    """Delete a model; its artifacts stay."""
    cases.of(LoggedModels).delete(bearer(request), model_id)
    return {}


@router.call("PATCH", f"{_MODEL}/tags", "tags of a model", OneLoggedModel)
def set_tags(model_id: str, body: LoggedModelTags, request: Request, cases: Cases) -> Json:
    return {"model": cases.of(LoggedModels).set_tags(bearer(request), model_id, body.tags)}


@router.call("DELETE", f"{_MODEL}/tags/{{key:path}}", "delete a tag of a model")
def delete_tag(model_id: str, key: str, request: Request, cases: Cases) -> Json:
    cases.of(LoggedModels).delete_tag(bearer(request), model_id, key)
    return {}


@router.call("POST", f"{_MODEL}/params", "parameters of a model")
def add_params(model_id: str, body: LoggedModelParams, request: Request, cases: Cases) -> Json:
    cases.of(LoggedModels).add_params(bearer(request), model_id, body.params)
    return {}


@router.call("GET", f"{_MODEL}/artifacts/directories", "artifacts of a model", ArtifactList)
def artifacts(
    model_id: str, request: Request, cases: Cases, caller: AuthenticatedCaller, artifact_directory_path: str = ""
) -> Json:
    """A directory of a model's artifacts, with paths below it."""
    model = cases.of(LoggedModels).model(caller, bearer(request), model_id, allow_deleted=True)
    root = cases.of(LoggedModels).artifacts_of(caller, model_id)
    below = artifact_directory_path.strip("/")
    files = cases.of(TrackedArtifacts).listing(caller, f"{root}/{below}" if below else root)["files"]
    before = f"{below}/" if below else ""
    paths = [{**file, "path": f"{before}{file['path']}"} for file in files]
    return {"root_uri": model["info"]["artifact_uri"], "files": paths}
