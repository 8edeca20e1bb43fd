"""The manifest of a program, program.json in the package that `jobs submit` makes of it: what is to be installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .output import Refused

PROGRAM = "trainyard_program"
"""The package: its name, and the beginning of its archive's."""

_MOST_BYTES = 1 << 20
_MOST_STEPS = 50


def install(site_packages: Path) -> dict[str, Any] | None:
    """The part of the manifest on the installation; None where no program is installed. Raises Refused."""
    path = site_packages / PROGRAM / "program.json"
    if path.is_symlink() or not path.is_file():
        return None
    with path.open("rb") as file:
        text = file.read(_MOST_BYTES + 1)
    try:
        part: dict[str, Any] = dict(json.loads(text[:_MOST_BYTES])["install"])
        is_right = len(part["steps"]) <= _MOST_STEPS and all(isinstance(step["what"], str) for step in part["steps"])
    except (ValueError, TypeError, KeyError, RecursionError):
        is_right = False
    if not is_right:
        raise Refused("The program's manifest, program.json, does not say what to install.")
    return part


def steps(site_packages: Path) -> list[dict[str, Any]]:
    """The steps of the installation, in their order. Raises Refused."""
    part = install(site_packages)
    return [] if part is None else list(part["steps"])


def files(site_packages: Path) -> Path:
    """The archive with the program's files."""
    return site_packages / PROGRAM / "files.tar"
