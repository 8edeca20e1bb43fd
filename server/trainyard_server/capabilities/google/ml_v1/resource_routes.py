"""Routes of the v1 API beside those of jobs."""

from typing import Any

from trainyard_server.api.dependencies import Cases, JsonOnly
from trainyard_server.api.routing import Router
from trainyard_server.capabilities.google.ml_v1.resources import GoogleResources, no_prediction, not_found
from trainyard_server.domain.access.route_access import UNRECORDED, Access

router = Router(prefix="/v1/projects/{project}", dependencies=[JsonOnly])

_LOCATION = "/locations/{location}"


@router.get(":getConfig", Access.VIEWER, "the project's config, which is empty")
def get_config(project: str) -> dict[str, Any]:  # noqa: ARG001 - it is the same for all
    """The config has no service account: jobs use the credentials of their agents."""
    return {"config": {}}


@router.post(":predict", Access.VIEWER, "refused: no prediction here", UNRECORDED)
@router.post(":explain", Access.VIEWER, "refused: no explanations here", UNRECORDED)
@router.post("/models", Access.VIEWER, "refused", UNRECORDED)
def predict(project: str) -> dict[str, Any]:  # noqa: ARG001
    raise no_prediction()


@router.get("/locations", Access.VIEWER, "the regions that jobs may name")
def list_locations(project: str, cases: Cases) -> dict[str, Any]:
    return cases.of(GoogleResources).locations(project)


@router.get(_LOCATION, Access.VIEWER, "one of these regions")
def get_location(project: str, location: str, cases: Cases) -> dict[str, Any]:
    return cases.of(GoogleResources).location(project, location)


@router.get("/operations", Access.VIEWER, "none: jobs are no long-running operations")
@router.get("/models", Access.VIEWER, "none: no prediction here")
def empty_list(project: str) -> dict[str, Any]:  # noqa: ARG001
    return {}


@router.get("/operations/{operation}", Access.VIEWER, "not found")
@router.post("/operations/{operation}:cancel", Access.VIEWER, "not found", UNRECORDED)
def operation(project: str, operation: str) -> dict[str, Any]:
    raise not_found("operation", f"projects/{project}/operations/{operation}")


@router.get(f"{_LOCATION}/operations", Access.VIEWER, "none: jobs are no long-running operations")
@router.get(f"{_LOCATION}/studies", Access.VIEWER, "none: no Vizier here")
def empty_location_list(project: str, location: str, cases: Cases) -> dict[str, Any]:
    cases.of(GoogleResources).check_location(project, location)
    return {}


@router.get(f"{_LOCATION}/operations/{{operation}}", Access.VIEWER, "not found")
@router.post(f"{_LOCATION}/operations/{{operation}}:cancel", Access.VIEWER, "not found", UNRECORDED)
def location_operation(project: str, location: str, operation: str, cases: Cases) -> dict[str, Any]:
    cases.of(GoogleResources).check_location(project, location)
    raise not_found("operation", f"projects/{project}/locations/{location}/operations/{operation}")


@router.get("/models/{rest:path}", Access.VIEWER, "not found")
def get_model(project: str, rest: str) -> dict[str, Any]:
    raise not_found("model", f"projects/{project}/models/{rest}")


@router.post("/models/{rest:path}", Access.VIEWER, "refused", UNRECORDED)
@router.patch("/models/{rest:path}", Access.VIEWER, "refused", UNRECORDED)
@router.delete("/models/{rest:path}", Access.VIEWER, "refused", UNRECORDED)
def change_model(project: str, rest: str) -> dict[str, Any]:  # noqa: ARG001
    raise no_prediction()


@router.get(f"{_LOCATION}/studies/{{rest:path}}", Access.VIEWER, "not found")
def get_study(project: str, location: str, rest: str) -> dict[str, Any]:
    raise not_found("study", f"projects/{project}/locations/{location}/studies/{rest}")


@router.post(f"{_LOCATION}/studies", Access.VIEWER, "refused", UNRECORDED)
def create_study(project: str, location: str) -> dict[str, Any]:  # noqa: ARG001
    raise no_prediction()


@router.post(f"{_LOCATION}/studies/{{rest:path}}", Access.VIEWER, "refused", UNRECORDED)
@router.delete(f"{_LOCATION}/studies/{{rest:path}}", Access.VIEWER, "refused", UNRECORDED)
def change_study(project: str, location: str, rest: str) -> dict[str, Any]:  # noqa: ARG001
    raise no_prediction()
