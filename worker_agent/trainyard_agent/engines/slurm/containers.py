"""Containers of Apptainer, or of Singularity, as the nodes start them: the command of a rank and its variables.

A job's images are pulled into `images` of the run's directory before its ranks start (`pull.py`): N.sif, and N.json
with the image's own program and working directory. It is imported by `rank.py`, so it needs the standard library alone.
"""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainyard_agent.engines.slurm import setup

IMAGES, LIST, FAILED, WAITS = "images", "images.json", "image-failed.json", "image-waits.json"
"""In the run's directory: the images, their names by number, the failure of one, and that of the last try."""

CONTAINER = "container.json"
"""In a replica's directory: the command, and the node's variables, by which another container starts beside it."""

NO_PROGRAM = "Its image has neither an ENTRYPOINT nor a CMD: name a program in containerCommand"
LIMITS = ("--cleanenv", "--no-eval", "--contain", "--writable-tmpfs")
"""Options of each container: none of the node's variables, no shell that reads values, a /tmp, home and /dev of its
own, and files of the image that can be written to, in memory."""

_OF_THE_NODE = ("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV")
_OF_PROGRAMS = ("APPTAINER", "SINGULARITY", "SLURM")
_DEVICES = ("/dev/infiniband",)


class Bind(NamedTuple):
    """A file or directory of the node in a container. It is left out where it is missing if it is `optional`."""

    source: str
    target: str
    read_only: bool = False
    optional: bool = False


def prefix(program: str) -> str:
    """The beginning of the names of variables that the program passes to a container."""
    return f"{os.path.basename(program).upper()}ENV_"  # noqa: PTH119 - pathlib is slow to import


def start(
    program: str, options: Sequence[str], binds: Sequence[Bind], image: str, working: str, temporary: str
) -> list[str]:
    """The command that starts a container; the words of its program follow. `temporary` is a directory of the node for
    its /tmp and its home."""
    mounted = [bind for bind in binds if not bind.optional or os.path.exists(bind.source)]  # noqa: PTH110
    mounted += [Bind(path, path) for path in _DEVICES if os.path.isdir(path)]  # noqa: PTH112
    mounts = [word for bind in mounted for word in ("--mount", mount(bind))]
    return [program, "--quiet", "exec", *LIMITS, *options, "--workdir", temporary, "--pwd", working, *mounts, image]


def mount(bind: Bind) -> str:
    """The value of --mount, whose fields are those of CSV."""
    fields = ["type=bind", f"src={bind.source}", f"dst={bind.target}", *(["ro"] if bind.read_only else [])]
    return ",".join('"{}"'.format(field.replace('"', '""')) if set(field) & set(',"') else field for field in fields)


def words(config: Mapping[str, object], entrypoint: Sequence[str], command: Sequence[str]) -> list[str]:
    """The program by Docker's rules: an entrypoint of the job's own replaces both of the image's, arguments its CMD."""
    if entrypoint:
        return [*entrypoint, *command]
    return [*_list(config.get("Entrypoint")), *(command or _list(config.get("Cmd")))]


def working_directory(config: Mapping[str, object]) -> str:
    return str(config.get("WorkingDir") or "/")


def variables(environment: Mapping[str, str], run: str) -> dict[str, str]:
    """The variables of a program in a container, with those that the job's setup has made, but for paths of
    the node, and those of Slurm and Apptainer."""
    changed = setup.changed(environment, run, (*environment, *_OF_THE_NODE))
    return {name: value for name, value in changed.items() if name in environment or not name.startswith(_OF_PROGRAMS)}


def passed(environment: Mapping[str, str], program: str) -> dict[str, str]:
    """The variables by which the program gives these to a container. HOME is its own."""
    return {prefix(program) + name: value for name, value in environment.items() if name != "HOME"}


def _list(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []
