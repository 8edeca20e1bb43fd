"""Temporary directories with short paths, below the machine's own one: programs make Unix sockets in TMPDIR, whose
paths may have 107 characters (`multiprocessing.Manager`, torch's data loaders, gsutil).

It is imported on the nodes of Slurm too, so it needs the standard library alone.
"""

import os
import secrets
import stat
import tempfile
from collections.abc import Callable

LONGEST = 40
"""Characters of the path of such a directory."""

_PREFIX = "ty-"
_TOKEN_BYTES = 4
_NAME = len(_PREFIX) + 2 * _TOKEN_BYTES
_OTHERS = ("/tmp", "/var/tmp")  # noqa: S108 - every directory below has a name that nobody can guess
_ATTEMPTS = 100


def parent(is_open: Callable[[str], bool] = lambda _: True) -> str:
    """The directory of the machine, or of this process by its TMPDIR, in which new ones are made. `is_open`: whether
    their user may pass through it. Where none is short enough, it is that of this process."""
    own = tempfile.gettempdir()
    fitting = (path for path in (own, *_OTHERS) if len(os.fsencode(path)) + 1 + _NAME <= LONGEST)
    usable = (path for path in fitting if os.access(path, os.W_OK | os.X_OK) and is_open(path))
    return next(usable, own)


def unused(directory: str) -> str:
    """A path in `directory` that nobody can guess."""
    return os.path.join(directory, f"{_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}")  # noqa: PTH118


def make(directory: str, note: Callable[[str], None] = lambda _: None, user: int | None = None) -> str:
    """A new, empty directory there, which belongs to `user` alone (None: to the user of this process). `note` is given
    its path before it is made. Raises OSError."""
    for _ in range(_ATTEMPTS):
        path = unused(directory)
        note(path)
        try:
            os.mkdir(path, 0o700)  # noqa: PTH102 - never one that is there, or that a link leads to
        except FileExistsError:
            continue
        if user is not None:
            _give(path, user)
        return path
    raise FileExistsError(0, f"{_ATTEMPTS} names for a temporary directory are taken", directory)


def belongs_to(path: str, users: set[int]) -> bool:
    """Whether there is a directory, and no link to one, which belongs to one of these users."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid in users


def _give(path: str, user: int) -> None:
    """Give it away, unless somebody has put another one in its place."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(file).st_uid != os.geteuid():
            raise PermissionError(0, "another user has replaced a new directory", path)
        os.fchown(file, user, user)
    finally:
        os.close(file)
