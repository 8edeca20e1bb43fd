"""Code shared by the agent and its watchdog (`watchdog.py`): its deadline, the files it reads, its start and stop.

Standard library only: the watchdog is a small process.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.host.files import holder, is_locked, try_lock
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.lease import lease_file
from trainyard_agent.lease.lease_file import Grant

LOCK, AGENT_LOCK = "fence.lock", "agent.lock"

_LOCK_FD = 3
_TIMEOUT_S = 10.0  # for a process to end after a signal that it cannot ignore


@dataclass(frozen=True, slots=True)
class LeasedRun:
    """A launched run, read from its files. `ended`: none of its processes is alive."""

    grace_s: float
    stop_requested: bool
    ended: bool


def due(grant: Grant, runs: Iterable[LeasedRun]) -> float | None:
    """When the watchdog must act, on the lease's clock: after the agent's time to stop each run, and after the grace of
    the runs that it has stopped. None: no run is alive."""
    return min(
        (
            (grant.kill_at if run.stop_requested else grant.stop_at)(run.grace_s) + grant.watchdog_delay_s
            for run in runs
            if not run.ended
        ),
        default=None,
    )


def runs_of(state_dir: Path) -> Iterator[LeasedRun]:
    """Every launched run of the machine's engines. A damaged run.json counts as a run without grace."""
    for path in state_dir.glob("*/[!.]*/run.json"):
        if (launched := _launched(path)) is not None:
            grace_s, replicas = launched
            stop_requested = path.with_name("stop.json").exists()
            yield LeasedRun(grace_s, stop_requested, not any(map(_is_alive, replicas)))


def _is_alive(replica: Path) -> bool:
    """Whether a replica has not ended. Its engine locks `alive` meanwhile, or writes exit.json at its end."""
    alive = replica / "alive"
    return is_locked(alive) if alive.exists() else not (replica / "exit.json").exists()


def _launched(path: Path) -> tuple[float, list[Path]] | None:
    """The grace, in seconds, and the directories of the replicas; None for a run that was not launched, or was
    removed."""
    directories = list(path.parent.glob("*/"))
    try:
        record = json.loads(path.read_bytes())
        replicas = [directory for directory in directories if directory.name in record["addresses"]]
        return (float(record["grace_s"]), replicas) if record["launched"] else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return 0.0, directories


def command(state_dir: Path, lock: int) -> list[str]:
    """The watchdog's command line. It inherits `lock`, the open and locked fence.lock."""
    return [sys.executable, "-P", "-m", "trainyard_agent.watchdog", str(state_dir), str(lock)]


class WatchdogKeeper:
    """Starts the watchdog, for the agent."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._children: set[int] = set()  # one that is ending has no lock any more, and has not ended yet

    def ensure_running(self) -> None:
        """Start the watchdog, if there is none. Raises OSError."""
        self._children -= {child for child in self._children if os.waitpid(child, os.WNOHANG)[0]}
        lock = try_lock(self._state_dir / LOCK)
        if lock is None:
            return
        # The watchdog inherits a copy of the lock, so two concurrent calls start one.
        log = os.open(self._state_dir / "fence.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            child = os.posix_spawn(
                sys.executable,
                command(self._state_dir, _LOCK_FD),
                os.environ,  # with the engine's address
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, nothing, 0),
                    (os.POSIX_SPAWN_DUP2, nothing, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    (os.POSIX_SPAWN_DUP2, lock, _LOCK_FD),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGPIPE],
            )
            self._children.add(child)
        finally:
            for fd in (lock, log, nothing):
                os.close(fd)


def stop_watchdog(state_dir: Path) -> None:
    """Stop the watchdog and remove the lease, before or after every replica was stopped.

    Raises TimeoutError, OSError.
    """

    def is_stopped() -> bool:
        if not is_locked(state_dir / LOCK):
            return True
        # One that is just starting has no pid in the file yet.
        signal_holder(state_dir / LOCK, signal.SIGTERM)
        return False

    if not wait_until(is_stopped, deadline_in(_TIMEOUT_S), 0.01):
        raise TimeoutError(f"the watchdog of {state_dir} does not end")
    (state_dir / lease_file.NAME).unlink(missing_ok=True)


def signal_holder(lock: Path, number: signal.Signals) -> bool:
    """Send a signal to the process that holds the lock, and wait for its end. False if that process is unknown."""
    fd = holder(lock)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
        select.select([fd], [], [], _TIMEOUT_S)
    except ProcessLookupError:
        return True
    finally:
        os.close(fd)
    return True
