"""Token files and private directories, and the access of others on the machine to them."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument

HOW_TO_MAKE_ONE = "(umask 077; python3 -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE)"

_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Exposure:
    """Access of others to a file of secrets. `is_grave`: we could prevent it, or they may change it."""

    message: str
    is_grave: bool


@dataclass(frozen=True, slots=True)
class TokenFile:
    token: str
    exposure: Exposure | None


def create_private(path: Path) -> BinaryIO:
    """A new file to write to, which only its owner may use. Raises FileExistsError, OSError."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def read_token_file(path: Path) -> TokenFile:
    """A token and its exposure. Raises InvalidArgument if the file cannot be read or is empty."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            token = file.read().decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"The token file {path} cannot be read: {reason}.") from error
    if not token:
        raise InvalidArgument(f"The token file {path} is empty.")
    return TokenFile(token, exposure_of(path, status.st_mode, status.st_uid == os.geteuid()))


def exposure_of(path: Path, mode: int, is_ours: bool) -> Exposure | None:
    """Access of others to a file of secrets; None if there is none. Pure.

    A file of our own has no reason to be open. One of another user, such as a secret that root has mounted into a
    container (0444), is often open to reading and cannot be closed by us; nobody but its owner may write any.
    """
    octal = f"{stat.S_IMODE(mode):04o}"
    if mode & _MAY_WRITE:
        return Exposure(f"Others may change the file {path} (mode {octal}): {_how_to_close(path, is_ours)}", True)
    if is_ours and mode & _OTHERS:
        return Exposure(f"Others may read the file {path} (mode {octal}): {_how_to_close(path, is_ours)}", True)
    if mode & stat.S_IROTH:
        return Exposure(f"Every user of this machine may read the file {path} (mode {octal}).", False)
    return None


def _how_to_close(path: Path, is_ours: bool) -> str:
    who = "" if is_ours else " as its owner"
    return f"`chmod 600 {path}`{who}; for a secret that is mounted into a container, the mode 0400."


def make_private(directory: Path, may_pass: bool = False) -> str:
    """Create the directory, or close one of our own that others may use. Returns a line for the log; "" if nothing was
    closed. `may_pass`: others may be let through to what they know by name (0711), as jobs of other users need.

    Raises OSError, and FailedPrecondition for another user's directory that is open to others.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.stat()
    mode = stat.S_IMODE(status.st_mode)
    allowed = stat.S_IXGRP | stat.S_IXOTH if may_pass else 0
    if not mode & _OTHERS & ~allowed:
        return ""
    if status.st_uid != os.geteuid():
        raise FailedPrecondition(
            f"The directory {directory} belongs to another user and is open to others (mode {mode:04o}). Have its "
            "owner run `chmod 700`, or give a new directory below it: it will be made private."
        )
    directory.chmod(0o700)
    return f"{directory} was open to others (mode {mode:04o}): only its owner may use it now"
