"""The base of the API's messages."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

from trainyard_protocol.config.fields import kind_of, validation_error
from trainyard_protocol.errors import shown


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
                raise validation_error(
                    f'says "{shown(name)}" twice, once in snake_case and once in camelCase.'
                )
            if value is not None:  # proto3 JSON: null is the same as absent
                renamed[name] = value
        return renamed

    def canonical(self) -> dict[str, Any]:
        """The fields that were sent, as the API returns them."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)

    def snake_case(self) -> dict[str, Any]:
        """The fields that were sent, with snake_case keys: the form in TF_CONFIG and CLOUD_ML_JOB."""
        return self.model_dump(mode="json", by_alias=False, exclude_unset=True)
