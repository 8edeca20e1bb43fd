"""Users of the machine: their processes, and what they leave behind. For root alone.

Each function is for a user that no person has: whatever belongs to it is ended or removed.
"""

import ctypes
import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from trainyard_agent.host import procfs
from trainyard_agent.host.files import remove_tree, run
from trainyard_agent.host.process_tags import kill_until_gone

SHARED = tuple(map(Path, ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")))  # noqa: S108 - looked through
"""Directories of the machine in which every user may leave files."""

_KILL_ALL = """
import os, sys
user = int(sys.argv[1])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
os.kill(-1, 9)
"""
_IPC_KINDS = {"shm": "shmctl", "sem": "semctl", "msg": "msgctl"}
_IPC_RMID = 0
_OPEN = 0o7022  # to others, or with the rights of the owner
_KILLER_S = 2.0


def processes(user: int) -> list[int]:
    """The pids of its processes, without zombies."""
    return [pid for pid, users in procfs.users().items() if user in users]


def kill_all(user: int, deadline_s: float = 10.0) -> None:
    """SIGKILL all its processes until none is left. Raises StillAlive after `deadline_s`."""

    def survivors() -> list[int]:
        if not processes(user):
            return []
        # By the kernel in one step: a program that forks all the time is always ahead of a list of pids.
        command = [sys.executable, "-I", "-S", "-c", _KILL_ALL, str(user)]
        with suppress(subprocess.TimeoutExpired):  # another of them has stopped it
            subprocess.run(command, env={}, stderr=subprocess.DEVNULL, check=False, timeout=_KILLER_S)
        return processes(user)

    kill_until_gone(survivors, f"user {user}", deadline_s)


def give(path: Path, user: int, group: int | None = None, former: int | None = None) -> None:
    """Give a directory and all in it to a user; with `former` only what belongs to that one. Links are not followed,
    and setuid bits are lost. Raises OSError."""
    former_only = [] if former is None else [f"--from={former}"]
    ids = f"{user}:{user if group is None else group}"
    if problem := run(["chown", "-R", "-h", "-P", *former_only, ids, "--", str(path)]):
        raise OSError(0, problem, str(path))


def seal(path: Path, former: int) -> None:
    """Make a directory root's, with all in it that belongs to the user `former`, whose processes are dead, and let
    nobody else write to it. Raises OSError, also for what belongs to somebody else.

    Each directory is shut before it is read: whoever else has it open, because `former` has left it so, can then put no
    link in the place of what is in it.
    """
    pending = [path]
    for directory in pending:
        _claim(directory, former)
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                pending.append(entry)
            else:
                _claim(entry, former)


def make_passage(path: Path, user: int | None) -> None:
    """Create a directory through which that user may pass, and no other. None: one of this process's user."""
    path.mkdir(mode=0o700)
    if user is not None:
        os.chown(path, -1, user)
        path.chmod(0o710)


def make_private(path: Path, user: int | None) -> None:
    """Create a directory that is that user's alone. None: one of this process's user."""
    path.mkdir(mode=0o700)
    if user is not None:
        os.chown(path, user, user)


def remove_orphans(user: int) -> None:
    """Remove its files in the shared directories of the machine, and its System V memory, semaphores and queues.
    Raises OSError."""
    for directory in filter(Path.is_dir, SHARED):
        for path in directory.iterdir():
            try:
                is_its_own = path.lstat().st_uid == user
            except FileNotFoundError:
                continue
            if is_its_own and path.is_dir() and not path.is_symlink():
                remove_tree(path)
            elif is_its_own:
                path.unlink(missing_ok=True)
    libc = ctypes.CDLL(None, use_errno=True)
    for kind, control in _IPC_KINDS.items():
        for identifier in _ipc(kind, user):
            arguments = (identifier, 0, _IPC_RMID, None) if kind == "sem" else (identifier, _IPC_RMID, None)
            getattr(libc, control)(*arguments)  # fails only for one that is gone


def closed_to(path: Path) -> Path | None:
    """The first directory on the way to `path` that strangers may not enter; None if there is none."""
    for way in (path.absolute(), path.resolve()):
        for directory in (*reversed(way.parents), way):
            if directory.is_dir() and not directory.stat().st_mode & 0o001:
                return directory
    return None


def _claim(path: Path, former: int) -> None:
    """Make a file of `former` root's, in a directory that nobody else can change."""
    status = path.lstat()
    if status.st_uid not in (0, former):
        raise OSError(f"{path} belongs to the user {status.st_uid}")
    if status.st_uid == former:
        os.chown(path, 0, 0, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode) and status.st_mode & _OPEN:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OPEN)


def _ipc(kind: str, user: int) -> list[int]:
    """The ids of its objects of that kind, from /proc/sysvipc."""
    try:
        names, *rows = Path(f"/proc/sysvipc/{kind}").read_text("ascii").splitlines()
    except OSError:  # a kernel without them
        return []
    at = names.split().index("uid")
    return [int(row.split()[1]) for row in rows if int(row.split()[at]) == user]
