"""Discovery document of the v1 API, open to all: Google's clients build themselves from it.

    discovery.build("ml", "v1", discoveryServiceUrl="https://HOST/$discovery/rest?version={apiVersion}", ...)

Schemas of requests are made from the messages of the protocol, so they are what is parsed. Names, types and paths are
those of Google's own document; `secrets` is ours. Source: https://developers.google.com/discovery/v1/reference/apis
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import Request
from pydantic import PlainSerializer
from pydantic.fields import FieldInfo

import trainyard_protocol
from trainyard_protocol.errors import NotFound, shown
from trainyard_protocol.fields import Duration
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.message import Message
from trainyard_protocol.states import JobState
from trainyard_server.api.routing import Router
from trainyard_server.domain.access.route_access import Access

router = Router()

_PREFIX = "GoogleCloudMlV1__"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_PAGE = ("pageSize:integer:int32", "pageToken:string")
_TYPES: Mapping[str, Mapping[str, Any]] = {
    "string": {"type": "string"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "google-datetime"},
    "int64": {"type": "string", "format": "int64"},
    "int32": {"type": "integer", "format": "int32"},
    "double": {"type": "number", "format": "double"},
    "boolean": {"type": "boolean"},
    "texts": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {"type": "object", "additionalProperties": {"type": "any"}},
    "state": {"type": "string", "enum": ["STATE_UNSPECIFIED", *JobState.__members__]},
}
_ANSWERS: Mapping[str, Mapping[str, str | Sequence[str]]] = {
    f"{_PREFIX}Job": {
        "jobId": "string",
        "trainingInput": f"${_PREFIX}TrainingInput",
        "createTime": "time",
        "startTime": "time",
        "endTime": "time",
        "state": "state",
        "errorMessage": "string",
        "trainingOutput": f"${_PREFIX}TrainingOutput",
        "labels": "texts",
        "etag": "bytes",
        "jobPosition": "int64",
    },
    f"{_PREFIX}ListJobsResponse": {"jobs": [f"${_PREFIX}Job"], "nextPageToken": "string"},
    f"{_PREFIX}CancelJobRequest": {},
    f"{_PREFIX}TrainingOutput": {
        "completedTrialCount": "int64",
        "trials": [f"${_PREFIX}HyperparameterOutput"],
        "consumedMLUnits": "double",
        "isHyperparameterTuningJob": "boolean",
        "hyperparameterMetricTag": "string",
    },
    f"{_PREFIX}HyperparameterOutput": {
        "trialId": "string",
        "hyperparameters": "texts",
        "startTime": "time",
        "endTime": "time",
        "finalMetric": "$GoogleCloudMlV1_HyperparameterOutput_HyperparameterMetric",
        "allMetrics": ["$GoogleCloudMlV1_HyperparameterOutput_HyperparameterMetric"],
        "isTrialStoppedEarly": "boolean",
        "state": "state",
    },
    "GoogleCloudMlV1_HyperparameterOutput_HyperparameterMetric": {
        "trainingStep": "int64",
        "objectiveValue": "double",
    },
    f"{_PREFIX}GetConfigResponse": {
        "config": f"${_PREFIX}Config",
        "serviceAccount": "string",
        "serviceAccountProject": "int64",
    },
    f"{_PREFIX}Config": {"tpuServiceAccount": "string"},
    f"{_PREFIX}Location": {"name": "string", "capabilities": [f"${_PREFIX}Capability"]},
    f"{_PREFIX}Capability": {"type": "string", "availableAccelerators": ["string"]},
    f"{_PREFIX}ListLocationsResponse": {"locations": [f"${_PREFIX}Location"], "nextPageToken": "string"},
    f"{_PREFIX}ListModelsResponse": {"models": [f"${_PREFIX}Model"], "nextPageToken": "string"},
    f"{_PREFIX}Model": {"name": "string"},
    f"{_PREFIX}ListStudiesResponse": {"studies": [f"${_PREFIX}Study"]},
    f"{_PREFIX}Study": {"name": "string"},
    "GoogleIamV1__Policy": {"version": "int32", "etag": "bytes", "bindings": ["$GoogleIamV1__Binding"]},
    "GoogleIamV1__Binding": {"role": "string", "members": ["string"]},
    "GoogleIamV1__SetIamPolicyRequest": {"policy": "$GoogleIamV1__Policy"},
    "GoogleIamV1__TestIamPermissionsRequest": {"permissions": ["string"]},
    "GoogleIamV1__TestIamPermissionsResponse": {"permissions": ["string"]},
    "GoogleLongrunning__ListOperationsResponse": {
        "operations": ["$GoogleLongrunning__Operation"],
        "nextPageToken": "string",
    },
    "GoogleLongrunning__Operation": {
        "name": "string",
        "done": "boolean",
        "metadata": "any",
        "response": "any",
    },
    "GoogleProtobuf__Empty": {},
}
_JOB = "projects/*/jobs/*"
_METHODS: Sequence[tuple[str, str, str, str, str, str, Sequence[str]]] = (
    # id, verb, path, pattern of its variable, schema of the request, that of the answer, parameters of the query
    (
        "projects.getConfig",
        "GET",
        "v1/{+name}:getConfig",
        "projects/*",
        "",
        f"{_PREFIX}GetConfigResponse",
        (),
    ),
    (
        "projects.jobs.create",
        "POST",
        "v1/{+parent}/jobs",
        "projects/*",
        f"{_PREFIX}Job",
        f"{_PREFIX}Job",
        ("validateOnly:boolean",),
    ),
    (
        "projects.jobs.list",
        "GET",
        "v1/{+parent}/jobs",
        "projects/*",
        "",
        f"{_PREFIX}ListJobsResponse",
        ("filter:string", *_PAGE),
    ),
    ("projects.jobs.get", "GET", "v1/{+name}", _JOB, "", f"{_PREFIX}Job", ()),
    (
        "projects.jobs.patch",
        "PATCH",
        "v1/{+name}",
        _JOB,
        f"{_PREFIX}Job",
        f"{_PREFIX}Job",
        ("updateMask:string:google-fieldmask",),
    ),
    (
        "projects.jobs.cancel",
        "POST",
        "v1/{+name}:cancel",
        _JOB,
        f"{_PREFIX}CancelJobRequest",
        "GoogleProtobuf__Empty",
        (),
    ),
    (
        "projects.jobs.getIamPolicy",
        "GET",
        "v1/{+resource}:getIamPolicy",
        _JOB,
        "",
        "GoogleIamV1__Policy",
        ("options.requestedPolicyVersion:integer:int32",),
    ),
    (
        "projects.jobs.setIamPolicy",
        "POST",
        "v1/{+resource}:setIamPolicy",
        _JOB,
        "GoogleIamV1__SetIamPolicyRequest",
        "GoogleIamV1__Policy",
        (),
    ),
    (
        "projects.jobs.testIamPermissions",
        "POST",
        "v1/{+resource}:testIamPermissions",
        _JOB,
        "GoogleIamV1__TestIamPermissionsRequest",
        "GoogleIamV1__TestIamPermissionsResponse",
        (),
    ),
    (
        "projects.locations.list",
        "GET",
        "v1/{+parent}/locations",
        "projects/*",
        "",
        f"{_PREFIX}ListLocationsResponse",
        _PAGE,
    ),
    (
        "projects.locations.get",
        "GET",
        "v1/{+name}",
        "projects/*/locations/*",
        "",
        f"{_PREFIX}Location",
        (),
    ),
    *(
        (
            f"projects.{below}operations.{method}",
            verb,
            f"v1/{{+name}}{suffix}",
            f"projects/*/{pattern}operations/*",
            "",
            answer,
            (),
        )
        for below, pattern in (("", ""), ("locations.", "locations/*/"))
        for method, verb, suffix, answer in (
            ("get", "GET", "", "GoogleLongrunning__Operation"),
            ("cancel", "POST", ":cancel", "GoogleProtobuf__Empty"),
        )
    ),
    (
        "projects.operations.list",
        "GET",
        "v1/{+name}/operations",
        "projects/*",
        "",
        "GoogleLongrunning__ListOperationsResponse",
        ("filter:string", *_PAGE),
    ),
    (
        "projects.models.list",
        "GET",
        "v1/{+parent}/models",
        "projects/*",
        "",
        f"{_PREFIX}ListModelsResponse",
        ("filter:string", *_PAGE),
    ),
    (
        "projects.locations.studies.list",
        "GET",
        "v1/{+parent}/studies",
        "projects/*/locations/*",
        "",
        f"{_PREFIX}ListStudiesResponse",
        (),
    ),
)
_PARAMETERS = (
    "access_token:string",
    "alt:string",
    "fields:string",
    "key:string",
    "oauth_token:string",
    "prettyPrint:boolean",
    "quotaUser:string",
    "$.xgafv:string",
)


@router.get("/$discovery/rest", Access.NOBODY, "the discovery document of `/v1`")
def of_the_service(request: Request, version: str = "v1") -> dict[str, Any]:
    return _document("ml", version, str(request.base_url))


@router.get("/discovery/v1/apis/{api}/{version}/rest", Access.NOBODY, "the same, at its older path")
def of_an_api(request: Request, api: str, version: str) -> dict[str, Any]:
    return _document(api, version, str(request.base_url))


def described_schemas() -> Mapping[str, Any]:
    """The schemas of the document, by name."""
    schemas: Mapping[str, Any] = _fixed()["schemas"]
    return schemas


def described_parameters() -> Mapping[str, Any]:
    """The parameters of the query that every method has."""
    parameters: Mapping[str, Any] = _fixed()["parameters"]
    return parameters


def described_methods() -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """The methods of the document, by verb and `anonymous` path."""
    methods = (_method(*described) for described in _METHODS)
    return {(one["httpMethod"], anonymous(f"/{one['flatPath']}")): one for one in methods}


def anonymous(path: str) -> str:
    """`/v1/projects/{project}/jobs` -> `/v1/projects/{}/jobs`."""
    return re.sub(r"\{[^}]*\}", "{}", path)


def _document(api: str, version: str, address: str) -> dict[str, Any]:
    """The document for clients that reached the server at this address. Raises NotFound."""
    if (api, version) != ("ml", "v1"):
        raise NotFound(f"There is no API {shown(f'{api}:{version}')!r} here; there is ml:v1.")
    return {**_fixed(), "rootUrl": address, "baseUrl": address}


@cache
def _fixed() -> Mapping[str, Any]:
    resources: dict[str, Any] = {}
    for name, *described in _METHODS:
        *groups, method = name.split(".")
        at: dict[str, Any] = {"resources": resources}
        for group in groups:
            at = at.setdefault("resources", {}).setdefault(group, {})
        at.setdefault("methods", {})[method] = _method(name, *described)  # type: ignore[arg-type]
    return {
        "kind": "discovery#restDescription",
        "discoveryVersion": "v1",
        "id": "ml:v1",
        "name": "ml",
        "version": "v1",
        "revision": trainyard_protocol.__version__,
        "title": "Trainyard: the AI Platform Training API",
        "description": "Training jobs on machines of one's own.",
        "protocol": "rest",
        "servicePath": "",
        "basePath": "",
        "batchPath": "batch",
        "fullyEncodeReservedExpansion": True,
        "parameters": _query(_PARAMETERS),
        "auth": {"oauth2": {"scopes": {_SCOPE: {"description": "Not looked at: the token decides."}}}},
        "schemas": _schemas(),
        "resources": resources,
    }


def _method(
    name: str, verb: str, path: str, pattern: str, request: str, answer: str, query: Sequence[str]
) -> dict[str, Any]:
    variable = path.partition("{+")[2].partition("}")[0]
    described: dict[str, Any] = {
        "id": f"ml.{name}",
        "httpMethod": verb,
        "path": path,
        "flatPath": _flat(path, variable, pattern),
        "parameterOrder": [variable],
        "parameters": {
            variable: {
                "type": "string",
                "location": "path",
                "required": True,
                "pattern": f"^{pattern.replace('*', '[^/]+')}$",
            },
            **_query(query),
        },
        "response": {"$ref": answer},
        "scopes": [_SCOPE],
    }
    return {**described, "request": {"$ref": request}} if request else described


def _flat(path: str, variable: str, pattern: str) -> str:
    """`v1/{+name}:cancel` -> `v1/projects/{projectsId}/jobs/{jobsId}:cancel`."""
    names = pattern.split("/")[::2]
    return path.replace(f"{{+{variable}}}", "/".join(f"{name}/{{{name}Id}}" for name in names))


def _query(parameters: Sequence[str]) -> dict[str, Any]:
    described = {}
    for parameter in parameters:
        name, kind, *form = parameter.split(":")
        described[name] = {"type": kind, "location": "query", **({"format": form[0]} if form else {})}
    return described


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    for name, fields in _ANSWERS.items():
        schemas[name] = _schema(name, {field: _named(kind) for field, kind in fields.items()})
    _add_message(TrainingInput, schemas)
    return schemas


def _schema(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": name, "type": "object", "properties": dict(properties)}


def _named(kind: str | Sequence[str]) -> dict[str, Any]:
    if not isinstance(kind, str):
        return {"type": "array", "items": _named(kind[0])}
    return {"$ref": kind[1:]} if kind.startswith("$") else dict(_TYPES[kind])


def _add_message(kind: type[Message], schemas: dict[str, Any]) -> None:
    """Add the schema of a message, and those of the messages in it."""
    name = _PREFIX + kind.__name__
    if name in schemas:
        return
    schemas[name] = schema = _schema(name, {})
    for field in kind.model_fields.values():
        assert field.alias is not None  # each has its spelling in the API
        schema["properties"][field.alias] = _type(field.annotation, _metadata(field), schemas)


def _metadata(field: FieldInfo) -> Sequence[object]:
    return tuple(field.metadata)


def _type(annotation: Any, metadata: Sequence[object], schemas: dict[str, Any]) -> dict[str, Any]:
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (given,) = (one for one in inside if one is not type(None))
        return _type(given, metadata, schemas)
    if origin is Annotated:
        return _type(inside[0], (*inside[1:], *metadata), schemas)
    if origin is tuple:
        return {"type": "array", "items": _type(inside[0], (), schemas)}
    if issubclass(annotation, Message):
        _add_message(annotation, schemas)
        return {"$ref": _PREFIX + annotation.__name__}
    if issubclass(annotation, StrEnum):
        return {"type": "string", "enum": list(annotation.__members__)}
    if annotation is int:
        is_text = any(isinstance(one, PlainSerializer) for one in metadata)
        return dict(_TYPES["int64" if is_text else "int32"])
    if annotation is str and get_args(Duration)[1] in metadata:
        return {"type": "string", "format": "google-duration"}
    return dict(_TYPES[{bool: "boolean", float: "double", str: "string"}[annotation]])
