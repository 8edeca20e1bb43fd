"""The bases of messages: of the v1 API, and of what agents, servers and clients send each other."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, model_validator
from pydantic.alias_generators import to_camel, to_snake

from trainyard_protocol.errors import shown
from trainyard_protocol.fields import kind_of, validation_error


class Message(BaseModel):
    """A proto3 message in its JSON mapping: camelCase or snake_case in, unknown names refused."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, validate_default=False
    )

    @model_validator(mode="before")
    @classmethod
    def _camel_case_keys(cls, data: object) -> object:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise validation_error(f"must be a mapping; this is {kind_of(data)}.")
        renamed: dict[str, object] = {}
        for key, value in data.items():
            name = to_camel(key) if isinstance(key, str) and key in cls.model_fields else str(key)
            if name in renamed:
                raise validation_error(f'says "{shown(name)}" twice, once in snake_case and once in camelCase.')
            if value is not None:  # proto3 JSON: null is the same as absent
                renamed[name] = value
        return renamed

    def canonical(self) -> dict[str, Any]:
        """The fields that were sent, as the API returns them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def snake_case(self) -> dict[str, Any]:
        """The fields that were sent, with snake_case keys: the form in TF_CONFIG and CLOUD_ML_JOB."""
        return self.model_dump(mode="json", by_alias=False, exclude_unset=True)


def _message_in(annotation: Any) -> type[Message] | None:
    """The message that a field of this annotation holds, alone or in a list; None for a value."""
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return annotation
    return next(filter(None, map(_message_in, get_args(annotation))), None)


def message_at(kind: type[Message], steps: Sequence[str | int]) -> type[Message] | None:
    """The message at the end of a path of fields and indices; None if a value, or nothing, is there."""
    message: type[Message] | None = kind
    for name in (step for step in steps if isinstance(step, str)):
        field = message.model_fields.get(to_snake(name)) if message is not None else None
        message = _message_in(field.annotation) if field is not None else None
    return message


_T = TypeVar("_T")
_MAX_VARIABLES = 1000

Many = Annotated[tuple[_T, ...], FailFast()]
"""A list in a message. Its first invalid element ends the validation: an error takes a hundred times its memory."""


def _not_too_many(value: object) -> object:
    if isinstance(value, Mapping) and len(value) > _MAX_VARIABLES:
        raise ValueError(f"may have {_MAX_VARIABLES} variables; it has {len(value)}")
    return value


Environment = Annotated[dict[str, str], BeforeValidator(_not_too_many)]
"""Environment variables in a message."""


class Wire(BaseModel):
    """Unknown fields are ignored, so that an older side can talk to a newer one."""

    model_config = ConfigDict(frozen=True, extra="ignore")
