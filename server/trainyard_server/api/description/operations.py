"""Parts of the OpenAPI description that all routes share: tags, errors and the scheme of tokens."""

from collections.abc import Mapping
from typing import Any

from fastapi import Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from trainyard_protocol.errors import STATUSES
from trainyard_server.domain.access.route_access import MLFLOW_AREAS

DESCRIPTION = (
    "Training jobs on your own machines. Errors have one form everywhere, that of Google's APIs (`ErrorAnswer`); "
    "MLflow's routes have MLflow's. Requests beyond a caller's rate get 429 with a Retry-After header; 503 may be "
    "tried again. The messages of `/v1` are in its [discovery "
    "document](/$discovery/rest?version=v1); the routes of Cloud Storage are those of Google's JSON API."
)

_TAGS: Mapping[str, tuple[str, str]] = {
    "/v1/": ("AI Platform Training", "Jobs as Google's AI Platform Training API had them."),
    "/v2/": ("Cloud Logging", "Log lines of jobs, for gcloud and the Cloud Logging clients."),
    "/batch": ("Google's clients", "What Google's clients call beside the jobs."),
    "/$discovery/": ("Google's clients", ""),
    "/discovery/": ("Google's clients", ""),
    "/trainyard/": ("Trainyard", "Everything that AI Platform's API has no call for."),
    "/upload/": ("Trainyard", ""),
    "/agent/": ("Agents", "For worker agents only."),
    "/api/": ("MLflow", "Tracking of metrics, parameters, runs and models by MLflow's clients."),
    "/": ("Service", "Health, and the description of this API."),
}
TAGS = [{"name": name, "description": text} for name, text in _TAGS.values() if text]

BEARER = Security(HTTPBearer(scheme_name="token", description="A token of a person or an agent.", auto_error=False))
"""The scheme of tokens, for the description. The authentication has checked the token before."""


class _ErrorForm(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FieldViolation(_ErrorForm):
    field: str
    description: str


class ErrorDetail(_ErrorForm):
    type: str = Field(alias="@type")
    violations: list[FieldViolation] = Field(alias="fieldViolations")


class ErrorStatus(_ErrorForm):
    code: int = Field(description="The HTTP status.")
    message: str = Field(description="What is wrong, and what is allowed.")
    status: str = Field(json_schema_extra={"enum": list(STATUSES)})
    details: list[ErrorDetail] = []


class ErrorAnswer(_ErrorForm):
    """Google's error model (AIP-193)."""

    error: ErrorStatus


class MlflowError(_ErrorForm):
    """An error as MLflow's clients read it."""

    error_code: str
    message: str


def tag_of(path: str) -> str:
    return next(name for prefix, (name, _) in _TAGS.items() if path.startswith(prefix))


def errors_of(path: str, answers_json: bool) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, which have one form, as FastAPI's `responses`. FastAPI gives a model the media type of the
    route's answer, but errors are JSON everywhere."""
    form = MlflowError if path.startswith(MLFLOW_AREAS) else ErrorAnswer
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{form.__name__}"}}}
    return {"default": {"description": "An error.", **({"model": form} if answers_json else {"content": content})}}
