"""Routes of the v1 API beside those of jobs."""

from typing import Any

from fastapi import APIRouter

from trainyard_protocol.errors import NotFound
from trainyard_server.api.dependencies import AuthenticatedCaller, Cases, JsonBody, JsonOnly
from trainyard_server.services.google.google_resources import no_prediction

router = APIRouter(prefix="/v1/projects/{project}", dependencies=[JsonOnly])

_LOCATION = "/locations/{location}"


@router.get(":getConfig")
def get_config(project: str, cases: Cases) -> dict[str, Any]:  # noqa: ARG001 - it is the same for all
    return cases.google_resources.config()


@router.post(":predict")
@router.post(":explain")
def predict(project: str) -> dict[str, Any]:  # noqa: ARG001
    raise no_prediction()


@router.get("/locations")
def list_locations(project: str, cases: Cases) -> dict[str, Any]:
    return cases.google_resources.locations(project)


@router.get(_LOCATION)
def get_location(project: str, location: str, cases: Cases) -> dict[str, Any]:
    return cases.google_resources.location(project, location)


@router.get("/operations")
def list_operations(project: str) -> dict[str, Any]:  # noqa: ARG001
    """Jobs are not long-running operations, so there are none."""
    return {}


@router.get("/operations/{operation}")
@router.post("/operations/{operation}:cancel")
def operation(project: str, operation: str, cases: Cases) -> dict[str, Any]:
    return cases.google_resources.operation(f"projects/{project}/operations/{operation}")


@router.get(f"{_LOCATION}/operations/{{operation}}")
@router.post(f"{_LOCATION}/operations/{{operation}}:cancel")
def location_operation(project: str, location: str, operation: str, cases: Cases) -> dict[str, Any]:
    cases.google_resources.check_location(project, location)
    return cases.google_resources.operation(f"projects/{project}/locations/{location}/operations/{operation}")


@router.get("/jobs/{job_id}:getIamPolicy")
def get_policy(project: str, job_id: str, cases: Cases) -> dict[str, Any]:
    return cases.google_resources.policy(project, job_id)


@router.post("/jobs/{job_id}:setIamPolicy")
def set_policy(project: str, job_id: str, cases: Cases) -> dict[str, Any]:
    return cases.google_resources.set_policy(project, job_id)


@router.post("/jobs/{job_id}:testIamPermissions")
def test_permissions(
    project: str, job_id: str, body: JsonBody, cases: Cases, caller: AuthenticatedCaller
) -> dict[str, Any]:
    return cases.google_resources.granted(caller, project, job_id, body)


@router.get("/models")
def list_models(project: str) -> dict[str, Any]:  # noqa: ARG001
    return {}


@router.get("/models/{rest:path}")
def get_model(project: str, rest: str) -> dict[str, Any]:
    raise NotFound(f"Field: name Error: The model projects/{project}/models/{rest} was not found.")


@router.post("/models")
@router.post("/models/{rest:path}")
@router.patch("/models/{rest:path}")
@router.delete("/models/{rest:path}")
def change_model(project: str) -> dict[str, Any]:  # noqa: ARG001
    raise no_prediction()


@router.get(f"{_LOCATION}/studies")
def list_studies(project: str, location: str, cases: Cases) -> dict[str, Any]:
    cases.google_resources.check_location(project, location)
    return {}


@router.get(f"{_LOCATION}/studies/{{rest:path}}")
def get_study(project: str, location: str, rest: str) -> dict[str, Any]:
    name = f"projects/{project}/locations/{location}/studies/{rest}"
    raise NotFound(f"Field: name Error: The study {name} was not found.")


@router.post(f"{_LOCATION}/studies")
@router.post(f"{_LOCATION}/studies/{{rest:path}}")
@router.delete(f"{_LOCATION}/studies/{{rest:path}}")
def change_study(project: str) -> dict[str, Any]:  # noqa: ARG001
    raise no_prediction()
