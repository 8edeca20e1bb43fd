"""OpenAPI description of the HTTP API at `/openapi.json`, open to all.

It is made from what serves the requests: FastAPI has the parameters and the typed answers; the readers of bodies have
their models (`BodyReader`); the access table has who may call a route and what it is for; messages of `/v1` are those
of the discovery document. Pages for browsers are not in it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.encoders import jsonable_encoder
from fastapi.openapi.models import Schema
from fastapi.openapi.utils import get_openapi
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

import trainyard_protocol
from trainyard_protocol.errors import STATUSES
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_server.api.dependencies import BodyReader, agent_key_of
from trainyard_server.api.description import discovery
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import MLFLOW, Access, AccessTable, Route, is_described

router = Router()

_REF = "#/components/schemas/{model}"
_TAGS: Mapping[str, tuple[str, str]] = {
    "/v1/": ("AI Platform Training", "The API of jobs as Google's service had it, for its clients."),
    "/v2/": ("Cloud Logging", "The lines of a job, for gcloud and the Logging clients."),
    "/batch": ("Google's clients", "What Google's clients call beside the jobs."),
    "/$discovery/": ("Google's clients", ""),
    "/discovery/": ("Google's clients", ""),
    "/trainyard/": ("Trainyard", "Everything that AI Platform's API has no call for."),
    "/upload/": ("Trainyard", ""),
    "/agent/": ("Agents", "For worker agents alone."),
    "/": ("Service", "Whether the service works, and this description."),
}
_DESCRIPTION = (
    "Training jobs on machines of one's own. Errors have one form everywhere, that of Google's APIs "
    "(`ErrorAnswer`). The routes of Cloud Storage are those of Google's JSON API, and not in here. Requests beyond a "
    "caller's rate get 429 with a Retry-After header; 503 may be tried again."
)
_GOOGLE = ("/v1/", "/v2/")
_CUSTOM_JOBS = "/customJobs"
_PARAMETERS: Mapping[str, str] = {
    "fields": "The part of the answer that is wanted, as in jobs(jobId,state).",
    "prettyPrint": "Whether the answer is indented.",
}
_SCHEMES: Mapping[str, Any] = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token of a person or an agent."},
    "accessToken": {
        "type": "apiKey",
        "in": "query",
        "name": "access_token",
        "description": "The same in the query, as Google's clients can send it.",
    },
    "agentKey": {
        "type": "apiKey",
        "in": "header",
        "name": AGENT_KEY,
        "description": "What an agent has drawn itself, and keeps.",
    },
}
_OF_MLFLOW = "mlflow-"
"""Beginning of the names of errors in MLflow's form."""

_ERRORS: Mapping[int, str] = {
    400: "The request is not valid, or not in the present state.",
    401: "No token, or a wrong one.",
    403: "The caller's role does not allow it.",
    404: "There is no such thing, or the caller may not see it.",
    409: "It exists, or was changed meanwhile.",
    413: "The body is too large.",
    429: "Beyond a quota, or too many requests.",
    501: "MLflow has it, and it is not built here.",
    503: "Not now: try again.",
}


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class FieldViolation(_Answer):
    field: str
    description: str


class ErrorDetail(_Answer):
    type: str = Field(alias="@type")
    violations: list[FieldViolation] = Field(alias="fieldViolations")


class ErrorStatus(_Answer):
    code: int = Field(description="The HTTP status.")
    message: str = Field(description="What is wrong, and what is allowed.")
    status: str = Field(json_schema_extra={"enum": list(STATUSES)})
    details: list[ErrorDetail] = []


class ErrorAnswer(_Answer):
    """Google's error model (AIP-193)."""

    error: ErrorStatus


class MlflowError(_Answer):
    """An error as MLflow's clients read it."""

    error_code: str
    message: str


@router.get("/openapi.json", Access.NOBODY, "the description of this API, for programs")
def description(request: Request) -> dict[str, Any]:
    return description_of(request.app)


def description_of(app: FastAPI) -> dict[str, Any]:
    """The description of a running application, made once."""
    if app.openapi_schema is None:
        app.openapi_schema = describe(app)
    return app.openapi_schema


def describe(app: FastAPI) -> dict[str, Any]:
    """The description of an application's routes."""
    contexts = [route for route in iter_route_contexts(app.routes) if is_described(route.path or "")]
    document = get_openapi(
        title=app.title,
        version=trainyard_protocol.__version__,
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0"},
        routes=contexts,
        tags=[{"name": name, "description": text} for name, text in _TAGS.values() if text],
    )
    components = document["components"]
    components["securitySchemes"] = _SCHEMES
    components["parameters"] = {name: _parameter(name, text) for name, text in _PARAMETERS.items()}
    components["responses"] = {
        f"{prefix}{code}": _error(text, kind)
        for prefix, kind in (("", ErrorAnswer), (_OF_MLFLOW, MlflowError))
        for code, text in _ERRORS.items()
    }
    schemas = components["schemas"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    google = discovery.described_methods()
    for name, schema in discovery.discovery_document()["schemas"].items():
        _add(schemas, name, _of_discovery(schema))
    access: AccessTable = app.state.access
    rows = {(row.method, row.path): row for row in access.rows}
    kinds: set[type[BaseModel]] = {ErrorAnswer, MlflowError}
    for context in contexts:
        for method in context.methods or ():
            operation = document["paths"][context.path_format][method.lower()]
            row = rows[method, context.path or ""]
            kind = _body_model(context.dependant)
            if kind is not None:
                kinds.add(kind)
                operation["requestBody"] = _json_body({"$ref": _REF.format(model=kind.__name__)})
            if row.path.startswith(_GOOGLE):
                _describe_google(operation, google.get((method, discovery.anonymous(row.path))), row)
            _complete(operation, row, context.dependant)
    _, defined = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_REF)
    for name, schema in defined.get("$defs", {}).items():
        _add(schemas, name, _as_fastapi_writes(schema))
    components["schemas"] = dict(sorted(schemas.items()))
    return document


def _add(schemas: dict[str, Any], name: str, schema: Any) -> None:
    """Add the schema of a message. Names are unique, so that each has one meaning."""
    if schemas.setdefault(name, schema) != schema:
        raise ValueError(f"{name} has two schemas: one in requests, another in answers")


def _as_fastapi_writes(schema: Mapping[str, Any]) -> Any:
    """The schema as `get_openapi` has it: without nulls, limits as numbers of one kind."""
    return jsonable_encoder(Schema(**schema), by_alias=True, exclude_none=True)


def _complete(operation: dict[str, Any], row: Route, dependant: Dependant) -> None:
    """Add what the access table says, and the errors."""
    operation["summary"] = row.what[:1].upper() + row.what[1:]
    operation["tags"] = [next(name for prefix, (name, _) in _TAGS.items() if row.path.startswith(prefix))]
    operation["security"] = _security(row, dependant)
    parameters = operation.setdefault("parameters", [])
    described = {parameter.get("name") for parameter in parameters}
    parameters += [_in_path(name) for name in re.findall(r"\{(\w+)", row.path) if name not in described]
    answers = operation["responses"]
    answers.pop("422", None)
    form = _OF_MLFLOW if row.path.startswith(MLFLOW) else ""
    for code in _codes(row, "requestBody" in operation):
        answers.setdefault(str(code), {"$ref": f"#/components/responses/{form}{code}"})


def _security(row: Route, dependant: Dependant) -> list[dict[str, list[str]]]:
    if row.access is Access.NOBODY:
        return []
    if any(dependency.call is agent_key_of for dependency in _tree(dependant)):
        return [{"token": [], "agentKey": []}]
    in_query = [{"accessToken": list[str]()}] if row.path.startswith(_GOOGLE) else []
    return [{"token": []}, *in_query]


def _codes(row: Route, has_body: bool) -> Iterator[int]:
    yield from (400, 503)
    if row.access is not Access.NOBODY:
        yield from (401, 403, 429)
    elif row.path.startswith("/trainyard/"):  # what its link is signed for
        yield from (403, 429)
    if "{" in row.path or row.access is Access.NOBODY or row.path.startswith(MLFLOW):
        yield 404
    if row.path.startswith(MLFLOW) and "{" in row.path:  # whatever else MLflow has
        yield 501
    if row.action:
        yield 409
    if has_body:
        yield 413


def _tree(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for dependency in dependant.dependencies:
        yield from _tree(dependency)


def _body_model(dependant: Dependant) -> type[BaseModel] | None:
    readers = (dependency.call for dependency in _tree(dependant))
    return next((call.kind for call in readers if isinstance(call, BodyReader)), None)


def _json_body(schema: Mapping[str, Any], required: bool = True) -> dict[str, Any]:
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _parameter(name: str, text: str) -> dict[str, Any]:
    kind = discovery.discovery_document()["parameters"][name]["type"]
    return {"name": name, "in": "query", "description": text, "schema": {"type": kind}}


def _error(text: str, kind: type[BaseModel]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REF.format(model=kind.__name__)}}}
    return {"description": text, "content": content}


def _describe_google(operation: dict[str, Any], method: Mapping[str, Any] | None, row: Route) -> None:
    """Add the messages of a method of the discovery document. What is not in it is refused."""
    parameters = operation.setdefault("parameters", [])
    parameters += [{"$ref": f"#/components/parameters/{name}"} for name in _PARAMETERS]
    if method is None:
        if row.path.startswith("/v1/") and _CUSTOM_JOBS not in row.path:
            del operation["responses"]["200"]
        return
    operation["operationId"] = method["id"]
    if "request" in method:
        schema = _of_discovery(method["request"])
        operation["requestBody"] = _json_body(schema, required=not row.path.endswith(":cancel"))
    answer = operation["responses"]["200"]["content"]["application/json"]
    answer["schema"] = _of_discovery(method["response"])


def _of_discovery(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of the discovery document as JSON Schema. A message has no other fields than those it names."""
    if "$ref" in schema:
        return {"$ref": _REF.format(model=schema["$ref"])}
    match schema.get("type"):
        case "any":
            return {}
        case "array":
            return {"type": "array", "items": _of_discovery(schema["items"])}
        case "object" if "additionalProperties" in schema:
            return {"type": "object", "additionalProperties": _of_discovery(schema["additionalProperties"])}
        case "object" if not schema.get("properties"):
            return {"type": "object"}
        case "object":
            properties = {name: _of_discovery(part) for name, part in schema.get("properties", {}).items()}
            return {"type": "object", "properties": properties, "additionalProperties": False}
        case _:
            return {name: schema[name] for name in ("type", "format", "enum", "pattern") if name in schema}
