"""Runs a command in a further container beside that of a replica: of the same image, with the same directories, /tmp
and variables. `python -I -S inside.py DIRECTORY COMMAND ARGUMENT...`, on the node of the replica, whose directory has
the supervisor's files. It needs the standard library alone.
"""

import json
import os
import sys
from typing import NoReturn

if __name__ == "__main__":  # started by its path, without site-packages
    sys.path.append(__file__.rpartition("/trainyard_agent/")[0])

from trainyard_agent.engines.slurm import containers
from trainyard_agent.host.process_tags import TAG
from trainyard_agent.runtimes.supervisor import descendants

_CANNOT_START = 126
_OF_CONTAINER = ("APPTAINER_", "SINGULARITY_", "PROMPT_COMMAND=", "PS1=", "LD_LIBRARY_PATH=/.singularity.d/libs")


def main(directory: str, command: list[str]) -> None:
    """Become the command. Exits with a message where the program has ended."""
    try:
        with open(f"{directory}/{containers.CONTAINER}", encoding="utf-8") as file:  # noqa: PTH123
            container = json.load(file)
        with open(f"{directory}/started.json", encoding="utf-8") as file:  # noqa: PTH123
            pids = descendants(int(json.load(file)["pid"]))
    except (OSError, ValueError, KeyError) as error:
        _fail(f"The program of the replica cannot be found: {error}")
    entries = next(filter(None, map(_variables, pids)), None)
    if entries is None:
        _fail("The program of the replica has not started yet, or has ended")
    inside = dict(entry.split("=", 1) for entry in entries if "=" in entry and not entry.startswith(_OF_CONTAINER))
    if "TERM" in os.environ:
        inside["TERM"] = os.environ["TERM"]
    start = container["command"]
    environment = {**container["environment"], **containers.passed(inside, start[0])}
    try:
        os.execvpe(start[0], [*start, *command], environment)  # noqa: S606 - a list, and no shell
    except OSError as error:
        _fail(f"{start[0]}: {error.strerror}")


def _variables(pid: int) -> list[str]:
    """The variables of a process in the container; none of any other, such as one that serves its file system."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            entries = [os.fsdecode(entry) for entry in file.read().split(b"\0")]
    except OSError:  # it has ended
        return []
    return entries if any(entry.startswith(f"{TAG}=") for entry in entries) else []


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(_CANNOT_START)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
