"""The module `trainyard` for programs whose environment has none: one file with `trainyard.log`, last on the path."""

from importlib.util import find_spec
from pathlib import Path

NAME = "trainyard.py"


def source() -> Path | None:
    """The file, beside the agent; None where it is not installed. It is copied, never imported here."""
    spec = find_spec("trainyard")
    return Path(spec.origin) if spec is not None and spec.origin is not None else None
