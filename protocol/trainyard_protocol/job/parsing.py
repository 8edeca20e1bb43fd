"""Parsing of jobs: a message, or every violation with the path of its field."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import ErrorDetails

from trainyard_protocol.errors import MAX_VIOLATIONS, InvalidArgument, Violation
from trainyard_protocol.fields import did_you_mean, kind_of
from trainyard_protocol.job.training_input import Job, TrainingInput
from trainyard_protocol.message import Message, message_at

_M = TypeVar("_M", bound="Message")


def parse_job(data: object) -> Job:
    """Parse the job of a create request. Raises InvalidArgument with every violation."""
    return parse(Job, data, "job")


def parse_training_input(data: object) -> TrainingInput:
    """Parse a `trainingInput` alone. Raises InvalidArgument with every violation."""
    return parse(TrainingInput, data, "job.training_input")


def parse(kind: type[_M], data: object, root: str) -> _M:
    """Validate `data` as `kind`; `root` is its proto path, for messages."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)[: MAX_VIOLATIONS + 1]
    raise InvalidArgument([_violation(kind, detail, root) for detail in details])


def proto_path(steps: Sequence[str | int], root: str = "") -> str:
    """`("trainingInput", "args", 2)` -> `args[2]`: the path as the real service names a field: `job.x` for
    the job's own fields, and no prefix for those of the training input.
    """
    path = root
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{to_snake(step)}"
    return path.lstrip(".").removeprefix("job.training_input.")


def _violation(kind: type[Message], detail: ErrorDetails, root: str) -> Violation:
    steps = list(_named(detail["loc"]))
    if detail["type"] == "extra_forbidden":
        name = str(detail["loc"][-1])  # a name of the user's own, also an empty one
        steps = list(_named(detail["loc"][:-1]))
        owner = message_at(kind, steps)
        at = root + "".join(f"[{s}]" if isinstance(s, int) else f".{to_snake(s)}" for s in steps)
        allowed = [to_camel(name) for name in owner.model_fields] if owner else []
        hint = did_you_mean(name, allowed) or f"Known here: {', '.join(allowed)}."
        if kind is Job and not steps and to_snake(name) in TrainingInput.model_fields:
            hint = "It belongs under trainingInput."
        return Violation(at, hint, unknown=name)
    path = proto_path(steps, root)
    if detail["type"] == "missing":
        return Violation(path, "is required and was not given.")
    if detail["type"] in ("tuple_type", "list_type"):
        return Violation(path, f"must be a list; this is {kind_of(detail['input'])}.")
    if detail["type"] == "dict_type":
        return Violation(path, f"must be a mapping; this is {kind_of(detail['input'])}.")
    return Violation(path, detail["msg"])


def _named(loc: Sequence[str | int]) -> Iterator[str | int]:
    """Pydantic's location without its own steps, which are not fields of the document."""
    for step in loc:
        if isinstance(step, int) or step.isidentifier() or "-" in step:
            yield step
