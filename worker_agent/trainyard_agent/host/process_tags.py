"""Processes of a run, found by a tag in their environment.

Every descendant inherits the tag, also through setsid and double forks, unless it clears its environment. Anybody can
set it: for a run with a user of its own, the processes of others do not count.
"""

import os
import signal
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from trainyard_agent.host import procfs

TAG = "TRAINYARD_REPLICA"
AGENT = "TRAINYARD_AGENT_DIR"
ATTACHMENT = "TRAINYARD_ATTACHMENT"
"""Has the id of an attachment in everything that its command has started, beside the tag of the replica."""
_PAUSE_S = 0.01


class StillAlive(Exception):
    """Processes that survive SIGKILL because they hang in the kernel."""


def tag(run_id: str, what: str, state_dir: Path | None = None) -> dict[str, str]:
    """The variables to set for everything started for `what` (a task name, `staging`) of a run: its tag, and the state
    directory of its agent, where that is on this machine."""
    return {TAG: f"{run_id}/{what}", **({AGENT: str(state_dir)} if state_dir is not None else {})}


def new_attachment() -> str:
    """An id for an attachment."""
    return uuid.uuid4().hex


def attachment_tag(attachment: str, state_dir: Path | None) -> dict[str, str]:
    """The variables to set for everything started for an attachment, and of the state directory of its agent."""
    return {ATTACHMENT: attachment, **({AGENT: str(state_dir)} if state_dir is not None else {})}


def attached(attachment: str) -> list[int]:
    """The pids of the processes of an attachment, without zombies."""
    return _with(f"{ATTACHMENT}={attachment}\0")


def attached_below(state_dir: Path) -> list[int]:
    """The same for all attachments of the agent of a state directory."""
    return sorted(set(_with(f"{ATTACHMENT}=")) & set(_with(f"{AGENT}={state_dir}\0")))


def tagged(run_id: str, what: str = "", user: int | None = None) -> list[int]:
    """The pids of processes with the tag of `what`, or with any tag of the run; without zombies. `user`: the run's own,
    None: it has the agent's, whose programs may change theirs."""
    pids = _with(f"{TAG}={run_id}/{what}" + ("\0" if what else ""))
    return [pid for pid in pids if user is None or procfs.users_of(pid) & {user, os.geteuid()}]


def kill_tagged(run_id: str, what: str = "", deadline_s: float = 10.0, *, user: int | None = None) -> None:
    """SIGKILL the tagged processes until none is left. Raises StillAlive after `deadline_s`."""
    kill_until_gone(lambda: tagged(run_id, what, user), f"run {run_id}", deadline_s)


def kill_until_gone(find: Callable[[], list[int]], owner: str, deadline_s: float) -> None:
    """SIGKILL the processes of the owner that `find` returns until it finds none. Raises StillAlive."""
    give_up_at = time.monotonic() + deadline_s
    while pids := find():
        if time.monotonic() > give_up_at:
            raise StillAlive(f"processes {', '.join(map(str, pids))} of {owner} cannot be killed")
        for pid in pids:
            with suppress(ProcessLookupError):  # it ended in between
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _with(variable: str) -> list[int]:
    """The pids of processes that have a variable which begins so in their environment."""
    wanted = b"\0" + os.fsencode(variable)
    with os.scandir("/proc") as entries:
        names = [entry.name for entry in entries if entry.name.isdecimal()]
    return [int(name) for name in names if wanted in b"\0" + _environment(name)]


def _environment(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb", buffering=0) as file:  # noqa: PTH123 - of each process of the machine
            return file.read()
    except OSError:  # ended, or another user's
        return b""
