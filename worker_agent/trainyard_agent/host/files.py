"""Atomic writes of small JSON files, and file locks that end with their process."""

import contextlib
import fcntl
import json
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any


class DamagedFile(OSError):
    """A file whose content is not what was written."""


def write_json(path: Path, value: object, mode: int = 0o666, *, durable: bool = True) -> None:
    """Replace the file atomically; of two writers one wins. On OSError the old file stays. `mode`: the permissions of
    the new file, from its creation on, without those that the umask takes. Not `durable`: after a crash of the
    machine it may be damaged."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        fresh.unlink(missing_ok=True)  # of a process of the same id, which was killed
        with open(fresh, "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
            file.write(json.dumps(value))
            file.flush()
            if durable:
                os.fsync(file.fileno())  # else the name may reach the disk before the content
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()  # its space is needed on a full disk
        raise


def write_private(path: Path, text: str) -> None:
    """Write a text to a new file that only its owner may read, in place of an earlier one. Raises OSError."""
    path.unlink(missing_ok=True)
    with open(path, "x", encoding="utf-8", newline="", opener=partial(os.open, mode=0o600)) as file:
        file.write(text)


def read_json(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file; None if there is no file. Raises DamagedFile for any other content."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged ({error})") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} is damaged (it is not a JSON object)")
    return value


def try_lock(path: Path) -> int | None:
    """An open file descriptor that holds the lock, to be closed by the caller; None if it is already locked.

    The kernel releases the lock when the last copy of the descriptor is closed, also when the process is killed.
    """
    return _flock(path, fcntl.LOCK_EX)


def is_locked(path: Path) -> bool:
    """Whether the file is locked; False if there is none. Concurrent calls do not affect each other."""
    if not path.exists():
        return False
    fd = _flock(path, fcntl.LOCK_SH)
    if fd is None:
        return True
    os.close(fd)
    return False


def holder(path: Path) -> int | None:
    """A pidfd of the process that holds the lock, to be closed by the caller; None if there is none.

    It is the process whose pid is in the file and that has the file open, so a reused pid is never returned.
    """
    if not is_locked(path):
        return None
    try:
        pid = int(path.read_text(encoding="ascii"))
        fd = os.pidfd_open(pid)
    except (OSError, ValueError):
        return None
    if is_locked(path) and _has_open(pid, path):
        return fd
    os.close(fd)
    return None


def remove_tree(path: Path) -> None:
    """Remove a directory, also one with unreadable directories in it, or one that others remove concurrently.
    Without a directory nothing happens. Raises OSError.

    What Python cannot remove `rm` does, which follows no link either and reaches any depth: programs nest directories
    deeper than Python can follow. Root may read any directory, and must not use `chmod -R`: it follows a link that
    somebody puts there meanwhile.
    """
    import shutil  # not by the watchdog, which stays small

    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(path)
    if not os.path.lexists(path):
        return
    remove = ["rm", "-rf", "--", str(path)]
    problem = run(remove)
    if problem and os.geteuid() != 0:
        run(["chmod", "-R", "u+rwx", "--", str(path)])
        problem = run(remove)
    if problem:
        raise OSError(0, problem, str(path))


def run(command: list[str]) -> str:
    """Run a program of the machine. Returns its last error; "" if it succeeds."""
    import subprocess  # not by the watchdog, which stays small

    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    lines = done.stderr.strip().splitlines() or [f"{command[0]} failed"]
    return lines[-1] if done.returncode else ""


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):  # it ended, or is another user's
        return any(_is_same(entry, path) for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def _is_same(link: Path, path: Path) -> bool:
    try:
        return link.samefile(path)
    except OSError:  # closed in between
        return False


def _flock(path: Path, kind: int) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
