"""Runs a command beside the program of a replica under a supervisor of ours: with its environment, working directory,
CPUs, host name and user. `python -I -S beside.py DIRECTORY USER PROCESSES COMMAND ARGUMENT...`, on the machine of the
replica, whose directory has the supervisor's files. It needs the standard library alone.

`USER` 0: the user of this process. Exit codes as a shell's: 126 for what cannot be started, 127 for what is not there.
"""

import ctypes
import json
import os
import signal
import sys

if __name__ == "__main__":  # started by its path, without site-packages
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # of a Ctrl-C that comes so early: no traceback
    sys.path.append(__file__.rpartition("/trainyard_agent/")[0])

from trainyard_agent.host.process_tags import AGENT, ATTACHMENT
from trainyard_agent.runtimes.supervisor import become_user, die_with

_CANNOT_START, _NOT_FOUND = 126, 127
_FROM_CALLER = ("TERM", ATTACHMENT, AGENT)


def main(directory: str, user: int, processes: int, command: list[str]) -> None:
    """Become the command. Exits with a message where there is no program, or no command of that name."""
    guard = os.getppid()
    try:
        with open(f"{directory}/started.json", encoding="utf-8") as file:  # noqa: PTH123
            pid = int(json.load(file)["pid"])
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            variables = file.read().split(b"\0")
        working = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115
        cpus = os.sched_getaffinity(pid)
    except (OSError, ValueError, KeyError) as error:
        _fail(f"The program of the replica cannot be found: {error}", _CANNOT_START)
    environment = dict(variable.split(b"=", 1) for variable in variables if b"=" in variable)
    environment |= {os.fsencode(name): os.environb[os.fsencode(name)] for name in _FROM_CALLER if name in os.environ}
    os.sched_setaffinity(0, cpus)
    _have_host_name_of(pid)
    if user:
        become_user(user, processes)
        die_with(guard)  # again: the kernel forgets it with another user
    try:
        os.chdir(working)
        os.execvpe(command[0], command, environment)  # noqa: S606 - a list, and no shell
    except FileNotFoundError:
        _fail(f"{command[0]}: not found", _NOT_FOUND)
    except OSError as error:
        _fail(f"{command[0]}: {error.strerror}", _CANNOT_START)


def _have_host_name_of(pid: int) -> None:
    """Have the host name of the program, which may be its own."""
    theirs = f"/proc/{pid}/ns/uts"
    if os.geteuid() == 0 and os.readlink(theirs) != os.readlink("/proc/self/ns/uts"):  # noqa: PTH115
        namespace = os.open(theirs, os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
            _fail(f"Its host name cannot be used: {os.strerror(ctypes.get_errno())}", _CANNOT_START)
        os.close(namespace)


def _fail(message: str, code: int) -> None:
    print(message, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
