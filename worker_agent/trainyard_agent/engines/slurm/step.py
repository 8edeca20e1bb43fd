"""Runs a command in a further step of a job, and writes its exit code to a file: srun would report one that is not 0
among the command's own lines. `python -I -S step.py FILE COMMAND ARGUMENT...`. It needs the standard library alone."""

import os
import signal
import sys

_SIGNALLED = 128


def main(path: str, command: list[str]) -> None:
    child = os.fork()
    if child == 0:
        os.execv(command[0], command)  # noqa: S606 - a list, and no shell
    for number in (signal.SIGINT, signal.SIGQUIT):  # of a terminal, for the command
        signal.signal(number, signal.SIG_IGN)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(f"{path}.new", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(str(status if status >= 0 else _SIGNALLED - status))
    os.replace(f"{path}.new", path)  # noqa: PTH105


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
