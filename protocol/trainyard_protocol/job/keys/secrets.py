"""Rules of a job's references to secrets: names, variables, paths and their number. Pure."""

import re
from collections.abc import Container, Iterable, Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, model_validator

from trainyard_protocol.errors import Violation, quoted
from trainyard_protocol.fields import Text, validation_error
from trainyard_protocol.job.ranks import RANK_NAMES
from trainyard_protocol.message import Message

MAX_REFERENCES = 20
"""References of one job."""

NAME_RULE = "a letter or '_', then letters, digits and '_', at most 64 characters"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PATH = re.compile(r"(/[A-Za-z0-9_.@+-]{1,100}){1,20}")
OWN_PREFIXES = ("TRAINYARD_", "CLOUD_ML_", "AIP_")
"""Beginnings of variables of the service."""

_CLOSED_PREFIXES = (*OWN_PREFIXES, "LD_")
OWN_VARIABLES = frozenset(
    {
        *("TF_CONFIG", "CLUSTER_SPEC", *RANK_NAMES),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "STORAGE_EMULATOR_HOST"),
        *("PATH", "HOME", "TMPDIR", "VIRTUAL_ENV", "PYTHONUNBUFFERED"),
    }
)
"""Variables that the service sets, and those that it needs as they are."""

_CLOSED = ("/proc", "/sys", "/dev", "/opt/trainyard")


def is_secret_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def checked_name(value: str) -> str:
    if not is_secret_name(value):
        raise validation_error(f"{quoted(value)} is not a secret's name: {NAME_RULE}.")
    return value


def is_variable(text: str) -> bool:
    """Whether a variable may have this name."""
    return _VARIABLE.fullmatch(text) is not None


def checked_variable(value: str) -> str:
    if not is_variable(value):
        raise validation_error(f"{quoted(value)} cannot be the name of a variable.")
    if value in OWN_VARIABLES or value.startswith(_CLOSED_PREFIXES):
        raise validation_error(f"{value} is a variable of the service: name another one in env.")
    return value


def checked_path(value: str) -> str:
    if not _PATH.fullmatch(value) or {".", ".."} & set(value.split("/")):
        raise validation_error(
            "must be an absolute path such as /run/secrets/key.json, of letters, digits and _.@+-; "
            f"this is {quoted(value)}."
        )
    if any(value == closed or value.startswith(f"{closed}/") for closed in _CLOSED):
        raise validation_error(f"must not be below {', '.join(_CLOSED)}; this is {quoted(value)}.")
    return value


def not_too_many(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) > MAX_REFERENCES:
        raise validation_error(f"may list at most {MAX_REFERENCES} secrets; it lists {len(value)}.")
    return value


def overlap(path: str, other: str) -> bool:
    """Whether one path is the other, or either would be a directory of the other."""
    shorter, longer = sorted((f"{path}/", f"{other}/"), key=len)
    return longer.startswith(shorter)


class SecretReference(Message):
    """A secret of the project that the job's programs get: as the variable `env`, by default of its own name; or as the
    file `file`, whose path is then in `env`, by default `NAME_FILE`. Not of the v1 API."""

    name: Annotated[Text, AfterValidator(checked_name)]
    env: Annotated[Text, AfterValidator(checked_variable)] = ""
    file: Annotated[Text, AfterValidator(checked_path)] = ""

    @model_validator(mode="after")
    def _default_variable(self) -> Self:
        checked_variable(self.variable)  # NAME may be one that the service sets
        return self

    @property
    def variable(self) -> str:
        """The environment variable with the value, or with the file's path."""
        return self.env or (f"{self.name}_FILE" if self.file else self.name)


def clashes(references: Iterable[SecretReference], env: Container[str]) -> Iterator[Violation]:
    """Secrets that have the variable or the file of another one, or a variable that `env` sets."""
    variables: set[str] = set()
    files: list[str] = []
    for number, reference in enumerate(references):
        at = f"secrets[{number}]"
        if reference.variable in variables:
            yield Violation(f"{at}.env", f"{reference.variable} is the variable of another secret already.")
        if reference.variable in env:
            yield Violation(f"{at}.env", f"{reference.variable} is set by env already.")
        variables.add(reference.variable)
        if not reference.file:
            continue
        if clash := next((other for other in files if overlap(other, reference.file)), ""):
            yield Violation(f"{at}.file", f"{reference.file} is in the way of {clash}, the file of another secret.")
        files.append(reference.file)
