"""The files of a backup, brought together in a directory at one moment: copies of databases, and links to all else.

Order: the database first, then the files that it refers to, while nothing is removed. Files are written before the
database names them, so all that it names is there. What was written in between is there too: logs that go further than
the database, or packages that no job has, do no harm.
"""

import fcntl
import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from trainyard_protocol.answers.stored.backups import SERVER_PART, STATE_PART, STORAGE_PART
from trainyard_server.storage.db.base.dumps import Dump
from trainyard_server.storage.db.store import Store
from trainyard_server.storage.files import LOCK
from trainyard_server.storage.removal_lock import RemovalLock
from trainyard_storage.backups import snapshots

_WORK = "backups-begun"
_TREES = ("logs", "staging", "usage", "keys")
_FILES = ("default-job-dirs.json", "installation", "ca.pem")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sources:
    """The places of what a backup has. `storage_dir`: of the storage behind gs://, if it is on this machine. `files`:
    by their names in the archive; those that are missing are left out."""

    data_dir: Path
    store: Store
    storage_dir: Path | None
    files: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Collected:
    """A directory with the parts of an archive, as of `time`."""

    directory: Path
    time: datetime
    dump: Dump


@contextmanager
def collected(sources: Sources, now: datetime) -> Iterator[Collected]:
    """Bring everything together, and remove it at the end. Raises OSError, also LockTimeout; Unavailable and
    FailedPrecondition where the database cannot be copied."""
    with _work_directory(sources.data_dir / _WORK) as work:
        server = work / SERVER_PART
        server.mkdir(mode=0o700)
        with _begun(sources, server) as dump:
            if sources.storage_dir is not None:
                snapshots.snapshot(sources.storage_dir, work / STORAGE_PART)
            (work / STATE_PART).mkdir(mode=0o700)
            for name, path in sources.files.items():
                if path.is_file():
                    shutil.copyfile(path, work / STATE_PART / name)
            dump.write_rest(server)
        yield Collected(work, now, dump)


@contextmanager
def _begun(sources: Sources, target: Path) -> Iterator[Dump]:
    """The database as it is now, or its snapshot until the end of the block, and all files of the server."""
    with ExitStack() as stack:
        with RemovalLock(sources.data_dir).keeping():
            dump = stack.enter_context(sources.store.dumping(target))
            for name in _TREES:
                _add_tree(sources.data_dir / name, target / name)
            for name in _FILES:
                if (sources.data_dir / name).is_file():
                    shutil.copyfile(sources.data_dir / name, target / name)
        yield dump


def _add_tree(source: Path, target: Path) -> None:
    """Link all files of a directory; not its locks and drafts."""
    try:
        entries = list(os.scandir(source))
    except FileNotFoundError:
        return
    target.mkdir(mode=0o700)
    for entry in entries:
        if entry.name == LOCK or entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            _add_tree(Path(entry.path), target / entry.name)
        elif entry.is_file(follow_symlinks=False):
            snapshots.add(Path(entry.path), target / entry.name)


@contextmanager
def _work_directory(parent: Path) -> Iterator[Path]:
    """A new directory below `parent`, removed at the end. Those of killed processes go first."""
    parent.mkdir(mode=0o700, exist_ok=True)
    for old in parent.iterdir():
        _remove_unused(old)
    work = parent / secrets.token_hex(8)
    work.mkdir(mode=0o700)
    held = _lock(work)
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)  # the next backup removes the rest
        os.close(held)


def _lock(work: Path) -> int:
    held = os.open(work, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return held


def _remove_unused(work: Path) -> None:
    with suppress(BlockingIOError, FileNotFoundError):
        held = _lock(work)
        try:
            shutil.rmtree(work)
            logger.info("Removed %s, of a backup that was not finished", work)
        finally:
            os.close(held)
