"""Small files that appear whole or not at all, and locks that end with their holder."""

import contextlib
import fcntl
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any


class DamagedFile(OSError):
    """Not what was written: the disk, or a person, changed it."""


def write_json(path: Path, value: object) -> None:
    """Replaces the file; after a power cut it is the old one or the new one, whole. Refused by the disk: the
    old one stays. Two writers of one path: one of the two wins, whole.
    """
    fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        with fresh.open("w", encoding="utf-8") as file:
            file.write(json.dumps(value))
            file.flush()
            os.fsync(file.fileno())  # else the name may reach the disk before what it stands for
        fresh.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()  # on a full disk even this little is missed
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in the file; None where there is no file. Raises DamagedFile for anything else in it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged ({error})") from error
    if not isinstance(value, dict):
        raise DamagedFile(f"{path} is damaged (it holds no JSON object)")
    return value


def try_lock(path: Path) -> int | None:
    """An open file descriptor that holds the lock, to be closed by the caller; None if another holds it.

    The kernel gives the lock back when the last copy of the descriptor is closed, however its holder dies.
    """
    return _flock(path, fcntl.LOCK_EX)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock; False where there is no file. Asking disturbs no one else who asks."""
    if not path.exists():
        return False
    fd = _flock(path, fcntl.LOCK_SH)
    if fd is None:
        return True
    os.close(fd)
    return False


def holder(path: Path) -> int | None:
    """A pidfd of the process that holds the lock, to be closed by the caller; None if nobody does.

    It is who wrote its id into the file, has the file open, and is still there: an id that the kernel has given to
    somebody else is never taken for it.
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
    """Remove a directory, also one that a program made inaccessible to itself, or that others remove from meanwhile.
    Not there: nothing."""
    opened = False
    while os.path.lexists(path):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue  # somebody else took a part of it: the rest is still to be removed
        except PermissionError:
            if opened:
                raise
            opened = True
            for directory, _, _ in os.walk(path):  # top down: each is opened before the walk goes into it
                Path(directory).chmod(0o700)


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
