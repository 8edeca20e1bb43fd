"""The fence: ends an agent's replicas when their lease is over and the agent does not.

An agent that was killed, or stopped (SIGSTOP), or hangs, leaves replicas that live on; the server starts their run
elsewhere all the same. So as long as a lease is in force, a process of its own watches over it:

    python -P -m trainyard_agent.watchdog STATE_DIR LOCK_FD

The agent starts it with its first lease, and whenever it is not there. It outlives the agent and knows the files of
the state directory alone: lease.json, agent.lock and those of the runs. A little after the agent should have stopped a
run, it kills the agent and does what the agent did not. It ends when there is no lease any more, when there is
neither an agent nor a replica, or when its state directory is gone.

It loads what it needs to act only when the server has been silent for a while: until then it is small, and when its
moment comes a busy machine has it ready.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from trainyard_agent.host.files import DamagedFile, is_locked
from trainyard_agent.lease import lease_file
from trainyard_agent.lease.lease_file import Grant
from trainyard_agent.lease.watchdog_files import (
    AGENT_LOCK,
    LOCK,
    command,
    due,
    runs_of,
    signal_holder,
)
from trainyard_protocol import __version__

_LONGEST_PAUSE_S = 1.0  # between two looks at lease.json
_RETRY_S = 2.0
_SETTLE_S = 10.0  # for an agent that comes back, starts a fence, and finds replicas whose lease is long over
_ALARM = 3 / 8  # of the lease without an answer; usual is a quarter, and an agent stops nothing before a half


class Fence:
    """`lock` is the open, locked fence.lock."""

    def __init__(self, state_dir: Path, lock: int) -> None:
        self._state_dir = state_dir
        self._lock = lock
        self._grant: Grant | None = None
        self._since = _now()
        self._stop_lost: Callable[[Path], None] | None = None

    def watch(self) -> None:
        """Until there is nothing to watch over."""
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        while (grant := self._in_force()) is not None:
            now = _now()
            at: float | None = None
            alarm = now >= grant.heard + grant.lease_s * _ALARM
            agent = is_locked(self._state_dir / AGENT_LOCK)
            if alarm or not agent:
                at = due(grant, runs_of(self._state_dir))
                if at is None and not agent:
                    return
            if alarm:
                self._prepare()
            elif self._stop_lost is not None:
                self._be_small()
            if at is not None and now >= max(at, self._since + _SETTLE_S if agent else 0.0):
                self._act()
            else:
                time.sleep(min(_LONGEST_PAUSE_S, grant.later_s / 2))

    def _in_force(self) -> Grant | None:
        """The lease, as far as it is this fence's: of this boot, this version, this directory."""
        with contextlib.suppress(DamagedFile):  # the last one that could be read ends earlier
            self._grant = lease_file.read(self._state_dir / lease_file.NAME)
        grant = self._grant
        if grant is None or (grant.boot_id, grant.version) != (lease_file.boot_id(), __version__):
            return None
        try:
            mine = os.path.samestat(os.fstat(self._lock), (self._state_dir / LOCK).stat())
        except FileNotFoundError:
            return None
        return grant if mine else None

    def _prepare(self) -> Callable[[Path], None]:
        if self._stop_lost is None:
            from trainyard_agent.main import stop_lost

            self._stop_lost = stop_lost
        return self._stop_lost

    def _be_small(self) -> None:
        """The server is back: begin anew, without what was loaded."""
        os.set_inheritable(self._lock, True)
        os.execv(sys.executable, command(self._state_dir, self._lock))  # noqa: S606 - a list, and no shell

    def _act(self) -> None:
        stop_lost = self._prepare()
        _say("the lease is over, and the agent has not stopped its replicas")
        if signal_holder(self._state_dir / AGENT_LOCK, signal.SIGKILL):
            _say("killed the agent")
        try:
            stop_lost(self._state_dir)
        except Exception as error:  # noqa: BLE001 - nobody else would do it
            _say(f"replicas may still live, trying again: {type(error).__name__}: {error}")
            time.sleep(_RETRY_S)
        else:
            _say("stopped its replicas")


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _say(message: str) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):  # its log may lie on a disk that is full
        os.write(2, f"{now} {message}\n".encode("utf-8", "backslashreplace"))


def main(state_dir: str, lock: int) -> None:
    os.set_inheritable(lock, False)
    os.chdir("/")
    Fence(Path(state_dir), lock).watch()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
