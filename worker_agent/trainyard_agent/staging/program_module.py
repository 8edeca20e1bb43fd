"""The package `trainyard` for programs whose environment has none: `trainyard.log` and `trainyard.wandb`, last on the
path."""

import shutil
from importlib.util import find_spec
from pathlib import Path

NAME = "trainyard"

_FILES = ("__init__.py", "wandb.py")


def copy_to(directory: Path) -> Path | None:
    """Copy the package into a directory, and return it there; None where it is not installed beside the agent. It is
    never imported here."""
    spec = find_spec(NAME)
    if spec is None or spec.origin is None:
        return None
    package = directory / NAME
    package.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(Path(spec.origin).with_name(name), package / name)
    return package
