"""The watchdog process: stops an agent's replicas when their lease has expired and the agent has not stopped them.

An agent that is killed, suspended (SIGSTOP) or hangs leaves its replicas running, and the server starts their run on
another machine when the lease has expired. So a separate process watches the lease:

    python -P -m trainyard_agent.watchdog STATE_DIR LOCK_FD

The agent starts it with its first lease, and again whenever it is missing. It outlives the agent and reads only files
of the state directory: lease.json, agent.lock and those of the runs. Shortly after the agent should have stopped a run,
it kills the agent and stops the replicas. It exits when there is no lease, when there is neither an agent nor a
replica, or when its state directory is gone.

To stay small it imports the code that stops replicas only after the server has not answered for a while.
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
from trainyard_agent.lease.watchdog_files import AGENT_LOCK, LOCK, command, due, runs_of, signal_holder
from trainyard_protocol import __version__

_MAX_POLL_S = 1.0  # between two reads of lease.json
_RETRY_S = 2.0
_SETTLE_S = 10.0  # for an agent that restarts and stops replicas whose lease expired long ago
# Part of the lease without an answer; a quarter is normal, and an agent stops nothing before two thirds.
_ALARM = 3 / 8


class Watchdog:
    """`lock` is the open, locked fence.lock."""

    def __init__(self, state_dir: Path, lock: int) -> None:
        self._state_dir = state_dir
        self._lock = lock
        self._grant: Grant | None = None
        self._since = _now()
        self._stop_expired: Callable[[Path], None] | None = None

    def watch(self) -> None:
        """Run until there is no lease, or neither an agent nor a replica."""
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        while (grant := self._current_grant()) is not None:
            now = _now()
            at: float | None = None
            alarm = now >= grant.renewed_at + grant.lease_s * _ALARM
            agent = is_locked(self._state_dir / AGENT_LOCK)
            if alarm or not agent:
                at = due(grant, runs_of(self._state_dir))
                if at is None and not agent:
                    return
            if alarm:
                self._load_stopper()
            elif self._stop_expired is not None:
                self._restart()
            if at is not None and now >= max(at, self._since + _SETTLE_S if agent else 0.0):
                self._stop_replicas()
            else:
                time.sleep(min(_MAX_POLL_S, grant.watchdog_delay_s / 2))

    def _current_grant(self) -> Grant | None:
        """The lease, if it is of this boot, this version and this directory; else None."""
        with contextlib.suppress(DamagedFile):  # the last readable one expires earlier
            self._grant = lease_file.read(self._state_dir / lease_file.NAME)
        grant = self._grant
        if grant is None or (grant.boot_id, grant.version) != (lease_file.boot_id(), __version__):
            return None
        try:
            is_own = os.path.samestat(os.fstat(self._lock), (self._state_dir / LOCK).stat())
        except FileNotFoundError:
            return None
        return grant if is_own else None

    def _load_stopper(self) -> Callable[[Path], None]:
        if self._stop_expired is None:
            from trainyard_agent.main import stop_expired

            self._stop_expired = stop_expired
        return self._stop_expired

    def _restart(self) -> None:
        """Execute the program again, to free the imports: the server answers again."""
        os.set_inheritable(self._lock, True)
        os.execv(sys.executable, command(self._state_dir, self._lock))  # noqa: S606 - a list, and no shell

    def _stop_replicas(self) -> None:
        stop_expired = self._load_stopper()
        _log("the lease has expired and the agent has not stopped its replicas")
        if signal_holder(self._state_dir / AGENT_LOCK, signal.SIGKILL):
            _log("killed the agent")
        try:
            stop_expired(self._state_dir)
        except Exception as error:  # noqa: BLE001 - no other process would stop them
            _log(f"replicas may still run, trying again: {type(error).__name__}: {error}")
            time.sleep(_RETRY_S)
        else:
            _log("stopped its replicas")


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _log(message: str) -> None:
    now = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):  # the disk of its log may be full
        os.write(2, f"{now} {message}\n".encode("utf-8", "backslashreplace"))


def main(state_dir: str, lock: int) -> None:
    os.set_inheritable(lock, False)
    os.chdir("/")
    Watchdog(Path(state_dir), lock).watch()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
