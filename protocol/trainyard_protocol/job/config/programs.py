"""Identity of a job's program: jobs of one program are compared with each other."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

_VERSION = re.compile(r"-\d.*|\.tar\.gz$|\.whl$|\.zip$")


def program_of(training_input: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """The module, the name of its package without the version, the image without its tag, and the command that starts
    the image."""
    config = training_input.get("masterConfig") or {}
    package, *_ = training_input.get("packageUris") or [""]
    command = " ".join(map(str, config.get("containerCommand") or ()))
    image = _untagged(config.get("imageUri") or "")
    return training_input.get("pythonModule") or "", _VERSION.sub("", package.rpartition("/")[2]), image, command


def first_like(training_input: Mapping[str, Any], jobs: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """The first of these jobs, by name, that runs the program of this training input; "" without one. A study is
    none: its trials ran the program."""
    wanted = program_of(training_input)
    return next((name for name, of in jobs if not of.get("hyperparameters") and program_of(of) == wanted), "")


def _untagged(image_uri: str) -> str:
    """The image without its tag and its digest."""
    image, slash, name = image_uri.rpartition("/")
    return f"{image}{slash}{name.partition('@')[0].partition(':')[0]}"
