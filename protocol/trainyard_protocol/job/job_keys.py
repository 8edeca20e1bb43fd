"""The keys that a job of the v1 API can have, such as `trainingInput.workerCount`, for commands that are given some."""

import re

from pydantic.alias_generators import to_camel

from trainyard_protocol.job.training_input import OUTPUT_ONLY, Job, TrainingInput
from trainyard_protocol.message import message_at

_OPEN = ("labels", "trainingOutput", "params", "metrics")
"""Keys with anything inside: users choose the names in labels, params and metrics, the server those of the output."""

_RESULTS = frozenset(("owner", "duration", "params", "metrics"))
"""Keys of the jobs in a list for programs, beside the API's."""

FIRST = frozenset(map(to_camel, Job.model_fields)) | OUTPUT_ONLY | _RESULTS
"""The keys of a job itself."""


def is_key(text: str) -> bool:
    """Whether a job can have this key, with its parts between dots and indices in brackets."""
    first, *inner = re.sub(r"\[\d*\]", "", text).split(".")
    if first not in FIRST or first in _OPEN:
        return first in FIRST
    if first != "trainingInput" or "_" in text:
        return first == text
    owner = message_at(TrainingInput, inner[:-1])
    return not inner or (owner is not None and inner[-1] in map(to_camel, owner.model_fields))
