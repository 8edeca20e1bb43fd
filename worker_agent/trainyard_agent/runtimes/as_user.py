"""Runs a program as the user of a job: `python -I -m ...as_user USER PROCESSES PROGRAM ARGUMENT...`.

For what is no replica: pip, and whatever the setup.py of a package does. A program that cannot be executed is told on
stderr, and the exit status is 126.
"""

import os
import sys
from collections.abc import Sequence

from trainyard_agent.runtimes.supervisor import become_user

_CANNOT_EXECUTE = 126


def command(user: int, processes: int, program: Sequence[str]) -> list[str]:
    """The command that runs `program` as that user."""
    return [sys.executable, "-I", "-m", __name__, str(user), str(processes), *program]


def main(user: str, processes: str, *program: str) -> None:
    try:
        become_user(int(user), int(processes))
        os.execv(program[0], program)  # noqa: S606 - a list, and no shell
    except OSError as error:
        print(f"{program[0]} cannot be started by user {user}: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_EXECUTE)


if __name__ == "__main__":
    main(*sys.argv[1:])
