"""What the agent and its fence (`fence.py`) share: when the fence acts, what it sees, how it is started and ended.

Standard library only: the fence is to cost a machine next to nothing.
"""

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard_agent.host.files import holder, is_locked, try_lock
from trainyard_agent.lease import lease_file
from trainyard_agent.lease.lease_file import Grant

LOCK, AGENT_LOCK = "fence.lock", "agent.lock"

_LOCK_FD = 3
_PATIENCE_S = 10.0  # for a process that was sent a signal which it cannot ignore


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was started, as its files tell. `told`: it was told to stop. `over`: nothing of it lives."""

    grace_s: float
    told: bool
    over: bool


def due(grant: Grant, runs: Iterable[Run]) -> float | None:
    """When the fence must act, on the lease's clock: the agent had its time to tell a run, and each run its grace.
    None: no run is alive."""
    return min(
        (
            grant.stop_at(run.grace_s) + grant.later_s + (run.grace_s if run.told else 0.0)
            for run in runs
            if not run.over
        ),
        default=None,
    )


def runs_of(state_dir: Path) -> Iterator[Run]:
    """Every run of either runtime that was launched. One whose run.json is damaged counts, without a grace."""
    for path in state_dir.glob("runs/[!.]*/run.json"):
        if (grace_s := _grace_of(path)) is not None:
            over = not any(is_locked(alive) for alive in path.parent.glob("*/alive"))
            yield Run(grace_s, (path.parent / "stop.json").exists(), over)
    for path in state_dir.glob("containers/[!.]*/run.json"):
        if (grace_s := _grace_of(path)) is not None:
            over = all((task / "exit.json").exists() for task in path.parent.glob("*/"))
            yield Run(grace_s, (path.parent / "stop.json").exists(), over)


def _grace_of(path: Path) -> float | None:
    """None for a run that was not launched, or is gone."""
    try:
        said = json.loads(path.read_bytes())
        return float(said["grace_s"]) if said["launched"] else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError):
        return 0.0


def command(state_dir: Path, lock: int) -> list[str]:
    """What a fence is: it inherits `lock`, the open and locked fence.lock."""
    return [sys.executable, "-P", "-m", "trainyard_agent.watchdog", str(state_dir), str(lock)]


class FenceKeeper:
    """The agent's side: sees to it that there is a fence."""

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        self._child: int | None = None

    def keep(self) -> None:
        """Start the fence, if there is none. Raises OSError."""
        if self._child is not None and os.waitpid(self._child, os.WNOHANG)[0]:
            self._child = None
        lock = try_lock(self._state_dir / LOCK)
        if lock is None:
            return
        # From now on it is locked, by a copy that the fence inherits: two agents, or two answers, start one.
        log = os.open(self._state_dir / "fence.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            self._child = os.posix_spawn(
                sys.executable,
                command(self._state_dir, _LOCK_FD),
                os.environ,  # the engine's address is there
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
        finally:
            for fd in (lock, log, nothing):
                os.close(fd)


def end(state_dir: Path) -> None:
    """No fence is left, and no lease. For whoever has stopped, or is about to stop, every replica.

    Raises TimeoutError, OSError.
    """
    give_up_at = time.monotonic() + _PATIENCE_S
    while is_locked(state_dir / LOCK):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"the fence of {state_dir} does not end")
        signal_holder(state_dir / LOCK, signal.SIGTERM)  # one that is just starting has no id yet
        time.sleep(0.01)
    (state_dir / lease_file.NAME).unlink(missing_ok=True)


def signal_holder(lock: Path, number: signal.Signals) -> bool:
    """Send a signal to who holds the lock, and wait for its end. False if it is not known who that is."""
    fd = holder(lock)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
        select.select([fd], [], [], _PATIENCE_S)
    except ProcessLookupError:
        return True
    finally:
        os.close(fd)
    return True
