"""Key files: random secrets of the installation, made at their first use. Readable only by the server's user."""

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32


class DamagedKey(OSError):
    """A key file whose content is no key."""


def key_of(path: Path, size: int = KEY_BYTES) -> bytes:
    """The key in the file, made if it is missing. Servers that start at the same time get the same key.

    Raises DamagedKey, OSError.
    """
    with suppress(FileNotFoundError):
        return existing_key(path, size)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(size).hex().encode() + b"\n")
            file.flush()
            os.fsync(descriptor)
        with suppress(FileExistsError):
            os.link(draft, path)
        _sync(path.parent)  # before anything is encrypted or signed with it
    finally:
        Path(draft).unlink()
    return existing_key(path, size)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def existing_key(path: Path, size: int = KEY_BYTES) -> bytes:
    """The key in the file. Raises FileNotFoundError, DamagedKey, OSError."""
    text = path.read_text(encoding="ascii", errors="replace").strip()
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != size:
        raise DamagedKey(f"{path} holds no key of {size} bytes: restore it from a backup, or remove it")
    return key
