"""Runs a command in a further step of a job, ends what it leaves, and writes its exit code to a file: srun would report
one that is not 0 among the command's own lines. `python -I -S step.py FILE COMMAND ARGUMENT...`. It needs the standard
library alone."""

import os
import signal
import sys

if __name__ == "__main__":  # started by its path, without site-packages
    sys.path.append(__file__.rpartition("/trainyard_agent/")[0])

from trainyard_agent.runtimes.attaching.guard import Guard
from trainyard_agent.runtimes.supervisor import adopt_orphans, restore_signals


def main(path: str, command: list[str]) -> None:
    def report(code: int) -> None:
        with open(f"{path}.new", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(str(code))
        os.replace(f"{path}.new", path)  # noqa: PTH105

    adopt_orphans()
    child = os.fork()
    if child == 0:
        restore_signals()
        os.execv(command[0], command)  # noqa: S606 - a list, and no shell
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # of a terminal, for the command
    Guard(child, report).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
