"""Snapshots of a storage's directory while another process uses it, and the examination of its objects.

An object's content is a file of its own that never changes, and it is removed after the database has forgotten it. So
the database and the files that it names agree while nobody can write to the database.
"""

import errno
import os
import shutil
import sqlite3
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

STORE = "_store"
"""The directory of buckets and objects in that of a storage; no bucket is named like this."""

DATABASE = "objects.db"
_FILES, _PARTS = "objects", "uploads"
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.ENOSYS)
_BLOCK = 1 << 20
_PATIENCE_S = 60.0


def add(source: Path, target: Path) -> bool:
    """Make `target` the same file as `source`, or a copy where the file system has no links. False without a source; a
    target that is there stays."""
    try:
        os.link(source, target)
    except FileExistsError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            shutil.copy2(source, target)
        except FileNotFoundError:
            return False
    return True


def copy_database(source: Path, target: Path) -> None:
    """Copy a SQLite database that others write, as it is at one moment. Raises sqlite3.Error."""
    with closing(sqlite3.connect(source, timeout=_PATIENCE_S)) as reader, closing(sqlite3.connect(target)) as writer:
        reader.backup(writer)


def snapshot(directory: Path, copy: Path) -> None:
    """Bring buckets and objects of a storage's directory to `copy` as they are at one moment. Contents become links
    where the file system has them. Those who write wait for as long as the database is copied. Does nothing without a
    storage. Raises OSError, sqlite3.Error."""
    root, target = directory / STORE, copy / STORE
    if not (root / DATABASE).exists():
        return
    for name in (_FILES, _PARTS):
        (target / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    with closing(sqlite3.connect(root / DATABASE, timeout=_PATIENCE_S, isolation_level=None)) as guard:
        _add_contents(guard, root, target)  # most of them before anybody waits
        guard.execute("BEGIN IMMEDIATE")
        copy_database(root / DATABASE, target / DATABASE)
        missing = _add_contents(guard, root, target)
        for part in (root / _PARTS).iterdir():
            add(part, target / _PARTS / part.name)
        guard.execute("ROLLBACK")
    if missing:
        raise OSError(errno.ENOENT, f"{missing[0]} of the storage, and its database names it", missing[0])


def _add_contents(database: sqlite3.Connection, root: Path, target: Path) -> list[str]:
    """Returns the names of files that are not there."""
    missing = []
    for (name,) in database.execute("SELECT file FROM objects"):
        place = target / _FILES / name[:2]
        place.mkdir(mode=0o700, exist_ok=True)
        if not add(root / _FILES / name[:2] / name, place / name):
            missing.append(name)
    return missing


def examine(directory: Path) -> Iterator[tuple[str, str]]:
    """The URL of each object of a storage, and what is wrong with its content; "" for nothing, also for what was
    replaced or deleted meanwhile."""
    root = directory / STORE
    if not (root / DATABASE).exists():
        return
    with closing(sqlite3.connect(root / DATABASE)) as database:
        rows = database.execute("SELECT bucket, name, file, size, crc32c FROM objects ORDER BY bucket, name").fetchall()
        for bucket, name, file, size, crc32c in rows:
            fault = _fault(root / _FILES / file[:2] / file, size, crc32c)
            if fault and not database.execute("SELECT 1 FROM objects WHERE file = ?", (file,)).fetchone():
                fault = ""
            yield f"gs://{bucket}/{name.decode(errors='replace')}", fault


def _fault(path: Path, size: int, crc32c: str) -> str:
    import google_crc32c

    checksum, length = google_crc32c.Checksum(), 0  # type: ignore[no-untyped-call]
    try:
        with path.open("rb") as content:
            while block := content.read(_BLOCK):
                checksum.update(block)  # type: ignore[no-untyped-call]
                length += len(block)
    except OSError as error:
        return f"its content cannot be read: {error.strerror}"
    if length != size:
        return f"its content has {length} bytes, and should have {size}"
    if b64encode(checksum.digest()).decode() != crc32c:  # type: ignore[no-untyped-call]
        return "its content does not have its checksum"
    return ""
