"""Our API held against the discovery document of the service that it re-creates."""

import json
import re
import typing
from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import googleapiclient
import pytest
from pydantic import TypeAdapter

from integration.api.api_support import BOSS, Clock, ScriptedAgent, Server, server
from trainyard_protocol.job.hyperparameters import (
    Algorithm,
    Goal,
    HyperparameterSpec,
    ParameterSpec,
    ParameterType,
    ScaleType,
)
from trainyard_protocol.job.keys.scheduling import Scheduling
from trainyard_protocol.job.training_input import (
    AcceleratorConfig,
    DiskConfig,
    EncryptionConfig,
    Job,
    ReplicaConfig,
    ScaleTier,
    TrainingInput,
)
from trainyard_protocol.message import Message
from trainyard_protocol.states import JobState
from trainyard_server.capabilities.google.ml_v1.discovery_routes import discovery_document

PREFIX = "GoogleCloudMlV1__"
DOCUMENT = json.loads(
    (Path(googleapiclient.__file__).parent / "discovery_cache" / "documents" / "ml.v1.json").read_text()
)
SCHEMAS = {name.removeprefix(PREFIX): schema for name, schema in DOCUMENT["schemas"].items()}

MESSAGES: dict[str, type[Message]] = {
    "TrainingInput": TrainingInput,
    "ReplicaConfig": ReplicaConfig,
    "AcceleratorConfig": AcceleratorConfig,
    "DiskConfig": DiskConfig,
    "Scheduling": Scheduling,
    "EncryptionConfig": EncryptionConfig,
    "HyperparameterSpec": HyperparameterSpec,
    "ParameterSpec": ParameterSpec,
}
CONDITIONAL = {"parentCategoricalValues", "parentDiscreteValues", "parentIntValues", "childParameterSpecs"}
OUR_OWN = {
    "TrainingInput": {"after", "customJob", "engineOptions", "env", "mounts", "notifications", "secrets", "tuningJob"},
    "HyperparameterSpec": {"argumentStyle", "earlyStopping", "measurementSelectionType"},
    "Scheduling": {"band", "disableRetries", "keepOnFailure", "minWorkers", "retry"},
    "ParameterSpec": CONDITIONAL,
}
"""Fields that the document does not have there; `CONDITIONAL` it has in StudyConfig_ParameterSpec."""

NOT_THERE = {
    "EarlyStopping",
    "EngineOptions",
    "GivenCustomJob",
    "GivenTuningJob",
    "KubernetesOptions",
    "MountReference",
    "Notification",
    "RetryRule",
    "SlurmOptions",
    "SecretReference",
    "ParentCategoricalValues",
    "ParentDiscreteValues",
    "ParentIntValues",
}
"""Messages of those fields."""

# A value that our field takes for each type of the document, and what it must be returned as.
SAMPLES: dict[str, Any] = {"int64": "3", "int32": 3, "double": 0.5, "boolean": True, "string": "x"}
SPECIAL: dict[str, Any] = {
    "google-duration": "3600s",
    "ParameterSpec": {"parameterName": "x", "type": "CATEGORICAL", "categoricalValues": ["a"]},
}


def sample(field: dict[str, Any]) -> Any:
    """A value of a field as the document describes it, as the API would return it."""
    if "$ref" in field:
        name = field["$ref"].removeprefix(PREFIX)
        return SPECIAL.get(name) or {
            key: sample(one) for key, one in SCHEMAS[name]["properties"].items() if key not in ("params",)
        } | ({"params": [SPECIAL["ParameterSpec"]]} if name == "HyperparameterSpec" else {})
    if field["type"] == "array":
        return [sample(field["items"])]
    if "enum" in field:
        return field["enum"][-1]
    return SPECIAL.get(field.get("format", "")) or SAMPLES.get(field.get("format", ""), SAMPLES.get(field["type"]))


@pytest.mark.parametrize("name", list(MESSAGES))
def test_message_has_the_documents_fields_and_no_other(name: str) -> None:
    ours = {field.alias for field in MESSAGES[name].model_fields.values()}
    assert ours - OUR_OWN.get(name, set()) == set(SCHEMAS[name]["properties"])


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field) for name, kind in MESSAGES.items() for field in sorted(SCHEMAS[name]["properties"])],
)
def test_field_takes_and_returns_the_documents_type(name: str, field: str) -> None:
    value = sample(SCHEMAS[name]["properties"][field])
    ours = next(f for f in MESSAGES[name].model_fields.values() if f.alias == field)
    kind: Any = typing.Annotated[ours.annotation, *ours.metadata] if ours.metadata else ours.annotation
    read: Any = TypeAdapter(kind).validate_python(value)
    assert TypeAdapter(kind).dump_python(read, mode="json", by_alias=True, exclude_unset=True) == value


@pytest.mark.parametrize(
    ("enum", "schema", "field"),
    [
        (ScaleTier, "TrainingInput", "scaleTier"),
        (Goal, "HyperparameterSpec", "goal"),
        (Algorithm, "HyperparameterSpec", "algorithm"),
        (ParameterType, "ParameterSpec", "type"),
        (ScaleType, "ParameterSpec", "scaleType"),
    ],
)
def test_enum_has_the_documents_names(enum: type[Enum], schema: str, field: str) -> None:
    assert set(enum.__members__) == set(SCHEMAS[schema]["properties"][field]["enum"])


def test_states_are_the_documents() -> None:
    assert {*JobState.__members__, "STATE_UNSPECIFIED"} == set(SCHEMAS["Job"]["properties"]["state"]["enum"])


def test_job_request_knows_the_documents_fields() -> None:
    ours = {field.alias for field in Job.model_fields.values()}
    assert ours < set(SCHEMAS["Job"]["properties"])


def methods(resource: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from resource.get("methods", {}).values()
    for below in resource.get("resources", {}).values():
        yield from methods(below)


def is_part(own: Any, real: Any) -> bool:
    """Whether all of ours is in the real description, which says more."""
    if isinstance(own, dict):
        return all(key in real and is_part(value, real[key]) for key, value in own.items())
    if isinstance(own, list):
        return set(own) <= set(real)
    return bool(own == real)


def test_own_document_describes_what_the_real_one_does(api: Server) -> None:
    """Methods, parameters and fields: each is in the real document and has the same type there."""
    own = api.client.get("/$discovery/rest?version=v1").json()
    assert api.client.get("/discovery/v1/apis/ml/v1/rest").json() == own
    assert api.client.get("/$discovery/rest?version=v2").status_code == 404
    assert own["rootUrl"] == "http://server/"
    real = {method["id"]: method for method in methods(DOCUMENT)}
    for method in methods(own):
        described = real[method["id"]]
        for key in ("httpMethod", "path", "flatPath", "parameterOrder", "request", "response"):
            assert method.get(key) == described.get(key), (method["id"], key)
        for name, parameter in method["parameters"].items():
            if name != "validateOnly":  # of our own
                assert parameter.items() <= described["parameters"][name].items(), (method["id"], name)
    of_training = {name for name in real if re.search(r"\.jobs\.(?!.*Iam)|\.operations\.|getConfig", name)}
    assert of_training <= {method["id"] for method in methods(own)}
    for name, schema in own["schemas"].items():
        if name not in DOCUMENT["schemas"]:
            assert name.removeprefix(PREFIX) in NOT_THERE
            continue
        known = DOCUMENT["schemas"][name].get("properties", {})
        for field, described in schema["properties"].items():
            if field not in OUR_OWN.get(name.removeprefix(PREFIX), ()):
                assert is_part(described, known[field]), (name, field, described)


def messages(annotation: Any) -> Iterator[type[Message]]:
    """The message of an annotation, and those in it."""
    for inside in typing.get_args(annotation):
        yield from messages(inside)
    if isinstance(annotation, type) and issubclass(annotation, Message):
        yield annotation
        for field in annotation.model_fields.values():
            if annotation not in typing.get_args(field.annotation):
                yield from messages(field.annotation)


def test_own_document_has_the_fields_that_are_parsed() -> None:
    schemas = discovery_document()["schemas"]
    kinds = {kind.__name__: kind for kind in messages(TrainingInput)}
    assert kinds.keys() == {*MESSAGES, *NOT_THERE}
    for name, kind in kinds.items():
        fields = {field.alias for field in kind.model_fields.values()}
        assert fields == set(schemas[PREFIX + name]["properties"]), name


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Server]:
    with server(tmp_path, Clock(), retries=0) as running:
        yield running


def check(value: Any, field: dict[str, Any], where: str) -> None:
    """That a value in one of our answers is of the document's type."""
    if "$ref" in field:
        properties = SCHEMAS[field["$ref"].removeprefix(PREFIX)]["properties"]
        assert isinstance(value, dict), where
        for key, one in value.items():
            assert key in properties, f"{where}.{key}"
            check(one, properties[key], f"{where}.{key}")
    elif field["type"] == "array":
        assert isinstance(value, list), where
        for one in value:
            check(one, field["items"], where)
    elif field["type"] == "object":
        assert all(isinstance(one, str) for one in value.values()), where
    elif field["type"] == "string":
        assert isinstance(value, str), where
        if "enum" in field:
            assert value in field["enum"], where
        if field.get("format") == "google-datetime":
            assert value.endswith("Z"), where
            assert datetime.fromisoformat(value), where
        if field.get("format") == "int64":
            assert int(value) >= 0, where
    elif field["type"] == "boolean":
        assert isinstance(value, bool), where
    else:
        assert isinstance(value, int | float), where


def test_answers_have_the_documents_fields_and_types_in_every_state(api: Server) -> None:
    job = {"$ref": f"{PREFIX}Job"}
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    seen = set()
    for job_id in ("runs", "waits"):
        body = {
            "jobId": job_id,
            "labels": {"a": "b"},
            "trainingInput": {
                "scaleTier": "CUSTOM",
                "masterType": "local-1",
                "pythonModule": "m",
                "args": ["1"],
                "scheduling": {"maxRunningTime": "60s", "maxWaitTime": "1800s", "priority": 3},
            },
        }
        api.use_cases.jobs.create(BOSS, "p", body)
    for act in (
        lambda: None,
        api.tick,
        agent.sync,
        agent.start,
        partial(agent.exit, code=1),
        api.tick,
        agent.sync,
        partial(api.cancel, "waits"),
        partial(agent.stopped, "master-replica-0"),
    ):
        act()
        answer = api.get("/v1/projects/p/jobs")
        check(answer, {"$ref": f"{PREFIX}ListJobsResponse"}, "list")
        for one in answer["jobs"]:
            check(one, job, one["jobId"])
            seen.add(one["state"])
            if one["state"] in ("FAILED", "CANCELLED"):
                assert one["errorMessage"]
    assert seen == {"QUEUED", "PREPARING", "RUNNING", "FAILED", "CANCELLING", "CANCELLED"}


def test_training_output_of_a_study_has_the_documents_fields_and_types(api: Server) -> None:
    agent = ScriptedAgent(api, cpus=1)
    agent.sync()
    params = [{"parameterName": "lr", "type": "DOUBLE", "minValue": 0, "maxValue": 1}]
    spec = {"params": params, "maxTrials": 2, "algorithm": "RANDOM_SEARCH", "enableTrialEarlyStopping": True}
    api.create("study", hyperparameters=spec)
    for values in ((0.5, 0.75), ()):
        api.tick()
        agent.sync()
        run = agent.run
        agent.start()
        agent.measure(run, *values)
        agent.sync()
        check(api.job("study"), {"$ref": f"{PREFIX}Job"}, "study")
        agent.exit()
    output = api.job("study")["trainingOutput"]
    check(output, {"$ref": f"{PREFIX}TrainingOutput"}, "output")
    assert [len(trial) for trial in output["trials"]] == [7, 5]  # the second one has no metric
    check(api.get("/v1/projects/p/jobs"), {"$ref": f"{PREFIX}ListJobsResponse"}, "list")
