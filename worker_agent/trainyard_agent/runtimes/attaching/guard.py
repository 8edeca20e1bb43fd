"""The guard of a command beside a replica's program: starts it, and ends all that it has started.

`python -I -S guard.py SOCKET TERMINAL COMMAND ARGUMENT...`. SOCKET is one end of an open pair, of which the agent has
the other; TERMINAL is 1 where stdin is a terminal, which then controls the command's session. On SOCKET the guard
writes READY as soon as a Ctrl-C reaches the command, and the command's exit code at its end.

It ends the command once the agent has closed its end, as the kernel does if the agent is killed. With the command ends
whatever is left of it, in any session and process group: this process adopts it (PR_SET_CHILD_SUBREAPER). Each process
gets SIGHUP, as from a terminal that is closed, and SIGKILL after HANG_UP_S. It needs the standard library alone.
"""

import fcntl
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Callable

if __name__ == "__main__":  # started by its path, without site-packages
    sys.path.append(__file__.rpartition("/trainyard_agent/")[0])

from trainyard_agent.runtimes.supervisor import (
    adopt_orphans,
    die_with,
    reap,
    restore_signals,
    signal_descendants,
    wake_on_signals,
)

READY = b"ready"
MESSAGE_BYTES = 16
HANG_UP_S = 5.0
SIGNALLED, NOT_STARTED, NOT_FOUND = 128, 126, 127

_NEVER = float("inf")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 1.0  # between two rounds of SIGKILL


class Guard:
    """`command` is the pid of a child, whose exit code `report` is called with. `agent` is the socket, -1: none."""

    def __init__(self, command: int, report: Callable[[int], None], agent: int = -1) -> None:
        self._command, self._report = command, report
        self._watched = [] if agent < 0 else [agent]
        self._wake = wake_on_signals()
        self._kill_at = _NEVER
        self._pause_s = _FIRST_PAUSE_S

    def run(self) -> None:
        """Return when there is no process left."""
        while not reap(self._note_child):
            if time.monotonic() >= self._kill_at:
                signal_descendants(signal.SIGKILL)
                self._wait(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            else:
                self._wait(self._kill_at - time.monotonic())

    def _wait(self, timeout_s: float) -> None:
        """Wait for a signal, or for the agent's end."""
        watched = [self._wake, *([] if self._is_ending else self._watched)]
        ready, _, _ = select.select(watched, [], [], None if timeout_s == _NEVER else max(0.0, timeout_s))
        has_signal = self._wake in ready
        if (has_signal and signal.SIGTERM in os.read(self._wake, 512)) or len(ready) > has_signal:
            self._hang_up()

    @property
    def _is_ending(self) -> bool:
        return self._kill_at < _NEVER

    def _hang_up(self) -> None:
        if not self._is_ending:
            self._kill_at = time.monotonic() + HANG_UP_S
            signal_descendants(signal.SIGHUP)
            signal_descendants(signal.SIGCONT)  # a job that is stopped would never see it

    def _note_child(self, pid: int, status: int) -> None:
        if pid == self._command:
            self._report(exit_code(status))
            self._hang_up()


def exit_code(status: int) -> int:
    """A shell's exit code for the status of `wait`."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else SIGNALLED - code


def main(agent: int, on_terminal: bool, command: list[str]) -> None:
    os.set_inheritable(agent, False)
    adopt_orphans()
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _become(command, guard, agent, on_terminal)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # they end with the command
        os.dup2(nothing, stream)
    Guard(child, lambda code: _write(agent, str(code).encode()), agent).run()


def _become(command: list[str], guard: int, agent: int, on_terminal: bool) -> None:
    """Become the command, in a session of its own. Never returns."""
    try:
        restore_signals()
        os.setsid()
        die_with(guard)
        if on_terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        _write(agent, READY)
        os.execvp(command[0], command)  # noqa: S606 - a list, and no shell
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_STARTED)
    finally:
        os._exit(NOT_STARTED)


def _write(agent: int, data: bytes) -> None:
    try:
        os.write(agent, data)
    except OSError:  # nobody listens any more
        return


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] == "1", sys.argv[3:])
