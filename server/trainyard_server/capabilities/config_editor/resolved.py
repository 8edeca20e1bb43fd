"""Resolved config: machines, inherited images and defaults filled in, as data and as text. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

import yaml
from pydantic.alias_generators import to_camel

from trainyard_protocol.answers.configs import ReplicaGroup
from trainyard_protocol.job.cluster import TASK_TYPES, TaskType, says_chief
from trainyard_protocol.job.config import text as config_text
from trainyard_protocol.job.config.text import ValueLocation
from trainyard_protocol.job.keys.scheduling import Scheduling
from trainyard_protocol.job.machines import ReplicaRequest, config_of
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.message import Message

_PREFIXES: Mapping[TaskType, str] = {
    "master": "master",
    "worker": "worker",
    "ps": "parameterServer",
    "evaluator": "evaluator",
}
_ORDER = [to_camel(name) for name in TrainingInput.model_fields]


def groups(gang: Iterable[ReplicaRequest], training_input: TrainingInput) -> tuple[ReplicaGroup, ...]:
    """The gang, grouped by task type."""
    by_type: dict[TaskType, list[ReplicaRequest]] = {}
    for request in gang:
        by_type.setdefault(request.task.type, []).append(request)
    return tuple(
        ReplicaGroup(
            task_type=task_type,
            task=requests[0].task.name,
            count=len(requests),
            machine_type=requests[0].machine_type,
            vcpus=requests[0].resources.vcpus,
            memory_bytes=requests[0].resources.memory_bytes,
            accelerator_type=requests[0].resources.accelerator_type,
            accelerator_count=requests[0].resources.accelerator_count,
            image_uri=config_of(training_input, task_type).image_uri,
        )
        for task_type in TASK_TYPES
        if (requests := by_type.get(task_type))
    )


def as_sent(training_input: TrainingInput) -> dict[str, Any]:
    """The fields that were sent, in the API's order, numbers as numbers."""
    return _in_order(_plain(training_input))


def resolved(training_input: TrainingInput, gang: Sequence[ReplicaGroup]) -> dict[str, Any]:
    """The training input with every default filled in, as the service uses it."""
    data = _plain(training_input)
    data["scaleTier"] = training_input.scale_tier.value
    by_type = {group.task_type: group for group in gang}
    for task_type, prefix in _PREFIXES.items():
        group = by_type.get(task_type)
        if group is None:
            continue
        data[f"{prefix}Type"] = group.machine_type
        if task_type != "master":
            data[f"{prefix}Count"] = group.count
        if config := _plain(config_of(training_input, task_type)):
            data[f"{prefix}Config"] = config
    scheduling = training_input.scheduling or Scheduling()
    defaults = {"maxRunningTime": scheduling.max_running_time, "priority": scheduling.priority}
    data["scheduling"] = {**defaults, **_plain(scheduling)}
    data["useChiefInTfConfig"] = says_chief(training_input)
    return _in_order(data)


def document(training_input: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """The content of a config file."""
    return {"trainingInput": dict(training_input)} | ({"labels": dict(labels)} if labels else {})


def as_yaml(data: Mapping[str, Any]) -> str:
    """YAML text that reads back as the same data."""
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    return text


def filled_lines(text: str, sent: Mapping[str, Any]) -> tuple[int, ...]:
    """The lines of a resolved config's text whose fields were not sent, or sent with another value."""
    read = config_text.read(text, "yaml")
    return tuple(sorted(set(_filled(read.data, sent, read.root))))


def _filled(data: Mapping[str, Any], sent: Mapping[str, Any], location: ValueLocation) -> Iterator[int]:
    for key, value in data.items():
        child = location.children[key]
        if key in sent and sent[key] == value:
            continue
        if isinstance(value, dict) and isinstance(sent.get(key), dict):
            yield from _filled(value, sent[key], child)
        else:
            yield from _lines(child)


def _lines(location: ValueLocation) -> Iterator[int]:
    yield (location.key or location.value).line
    for child in location.children.values():
        yield from _lines(child)


def _plain(message: Message) -> dict[str, Any]:
    """Plain values. Unlike in `canonical`, an int64 is a number."""
    data: dict[str, Any] = _value(message.model_dump(by_alias=True, exclude_unset=True))
    return data


def _value(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case dict():
            return {key: _value(item) for key, item in value.items()}
        case list() | tuple():
            return [_value(item) for item in value]
        case _:
            return value


def _in_order(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: data[key] for key in _ORDER if key in data}
