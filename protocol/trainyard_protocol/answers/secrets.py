"""Secrets of a project (`/trainyard/v1/projects/P/secrets`): their names, their bounds, and their messages.

People set values and never read them. Only the agent of a run gets the values that its job refers to.
"""

from datetime import datetime

from pydantic import Field

from trainyard_protocol.message import Wire

MAX_VALUE_BYTES = 64 * 2**10
MIN_VALUE = 4
"""Characters of a value, without blanks around it. A shorter one could not be masked in logs."""

MAX_SECRETS = 100
"""Secrets of one project."""


class SecretRequest(Wire):
    """A value to be stored."""

    value: str = Field(repr=False)


class SecretView(Wire):
    """A secret, without its value. `last_used_by` is the last job that was started with it."""

    name: str
    set_by: str
    set_at: datetime
    last_used_at: datetime | None = None
    last_used_by: str = ""


class SecretsView(Wire):
    secrets: tuple[SecretView, ...]


class RunSecrets(Wire):
    """The values of the secrets that a run's job refers to, by name: for its agent alone."""

    values: dict[str, str] = Field(repr=False)
