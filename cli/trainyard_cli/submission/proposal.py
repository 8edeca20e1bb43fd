"""Proposal of a command line that submits what is in the current directory."""

import os
import shlex
from contextlib import suppress
from pathlib import Path

from trainyard_programs import programs
from trainyard_protocol.errors import InvalidArgument

EXAMPLE = Path(__file__).parents[3] / "trainer_template" / "config.yaml"
"""The config of the trainer template, in a checkout of this repository."""

_CONFIGS = ("config.yaml", "config.yml", "config.json")
_PROGRAMS = ("trainer", "train.py", "task.py", "main.py", "train.sh")
_HELP = "jobs submit training --help"


def proposed_line(example: Path = EXAMPLE) -> str:
    """The command line for the config or the program in the current directory, else for the example; without any of
    them the one that shows help."""
    words = _own() or _example(example)
    return shlex.join(["jobs", "submit", "training", *words, "--stream-logs"]) if words else _HELP


def _own() -> list[str]:
    for name in _CONFIGS:
        if Path(name).is_file():
            return ["--config", name]
    for name in _PROGRAMS:
        with suppress(InvalidArgument):
            programs.find(Path(name))
            return ["--package-path", name]
    return []


def _example(config: Path) -> list[str]:
    if not config.is_file():
        return []
    try:
        relative = os.path.relpath(config)
    except FileNotFoundError:  # the current directory was deleted
        relative = os.pardir
    return ["--config", str(config) if relative.startswith(os.pardir) else relative]
