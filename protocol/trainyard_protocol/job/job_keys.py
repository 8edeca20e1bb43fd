"""The keys that a job of the v1 API can have, such as `trainingInput.workerCount`, for commands that are given some."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.job.training_input import OUTPUT_ONLY, Job

_OPEN = ("labels", "trainingOutput", "metrics")
"""Keys with anything inside: labels and metrics have names of users, and the output's fields are the server's."""

_RESULTS = frozenset(("owner", "duration", "metrics"))
"""Keys of the jobs in a list for programs, beside the API's."""

FIRST = frozenset(map(to_camel, Job.model_fields)) | OUTPUT_ONLY | _RESULTS
"""The keys of a job itself."""


def is_key(text: str) -> bool:
    """Whether a job can have this key, with its parts between dots and indices in brackets."""
    first, *inner = re.sub(r"\[\d*\]", "", text).split(".")
    if first not in FIRST or first in _OPEN:
        return first in FIRST
    if first != "trainingInput":
        return not inner
    schema = Job.model_json_schema(by_alias=True)
    return _has(schema, schema["properties"]["trainingInput"], inner)


def _has(schema: Mapping[str, Any], part: Mapping[str, Any], names: list[str]) -> bool:
    if not names:
        return True
    if "$ref" in part:
        return _has(schema, schema["$defs"][part["$ref"].rpartition("/")[2]], names)
    choices = [*part.get("anyOf", ()), *part.get("allOf", ())]
    if part.get("type") == "array":
        choices.append(part.get("items", {}))
    if any(_has(schema, choice, names) for choice in choices):
        return True
    properties: Mapping[str, Any] = part.get("properties", {})
    return names[0] in properties and _has(schema, properties[names[0]], names[1:])
