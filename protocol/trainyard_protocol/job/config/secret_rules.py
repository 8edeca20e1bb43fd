"""Rules of a job's references to secrets: names, variables, paths and their number. Pure."""

import re

from trainyard_protocol.errors import quoted
from trainyard_protocol.fields import validation_error
from trainyard_protocol.job.ranks import RANK_NAMES

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
