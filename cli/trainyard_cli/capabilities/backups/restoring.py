"""Restoring: a backup becomes a state directory, whole or not at all.

Everything is unpacked beside the directory, verified, written to the disk, and moved into place. What a killed call
leaves is removed by the next one, which begins anew.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard_cli.capabilities.backups import postgresql
from trainyard_cli.capabilities.backups.archive import unpack
from trainyard_cli.local.state import RESTORED_QUOTAS
from trainyard_protocol.answers.stored.backups import (
    RESTORED_MARK,
    SERVER_PART,
    STATE_PART,
    BackupManifest,
    RestoredMark,
)
from trainyard_protocol.errors import FailedPrecondition
from trainyard_protocol.net.private_files import create_private

_OPTIONS, _QUOTAS = "local.json", "quotas.yaml"
_TREE, _MARK = "tree", "database"


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored state directory. `missing`: files that its options name and that this machine does not have, by
    option."""

    root: Path
    manifest: BackupManifest
    missing: dict[str, str]


def restore(
    archive: Path, root: Path, database: str = "", progress: Callable[[int], None] = lambda _: None
) -> Restored:
    """Make the state directory `root` of a backup; `database` is the URL of an empty database for that of PostgreSQL.

    Raises FailedPrecondition for a directory that is not empty, InvalidArgument for a damaged archive, OSError.
    """
    root = root.absolute()
    _check_empty(root)
    root.parent.mkdir(parents=True, exist_ok=True)
    with _draft(root) as draft:
        mark = draft / _MARK
        is_again = mark.exists() and mark.read_text(encoding="utf-8") == database
        shutil.rmtree(draft / _TREE, ignore_errors=True)
        tree = draft / _TREE
        tree.mkdir(mode=0o700)
        manifest = unpack(archive, tree, progress)
        check_database(archive, manifest, database)
        missing = _place_state(tree, root)
        _write(tree / SERVER_PART / RESTORED_MARK, RestoredMark(of=manifest.time).model_dump_json())
        if database:
            _write(mark, database)
            os.sync()
            postgresql.restore(tree / SERVER_PART / postgresql.DUMP, database, again=is_again)
            (tree / SERVER_PART / postgresql.DUMP).unlink()
        os.sync()  # all files at once, before the directory has its name
        _check_empty(root)
        try:
            tree.rename(root)
        except OSError as error:
            raise FailedPrecondition(
                f"{root} cannot be replaced by what was restored: {error.strerror}. Name a directory that does not "
                "exist yet."
            ) from error
        os.sync()
    return Restored(root, manifest, missing)


def check_database(archive: Path, manifest: BackupManifest, database: str) -> None:
    """Raises FailedPrecondition unless a database is given exactly where the backup has one of PostgreSQL."""
    if manifest.database == "postgresql" and not database:
        raise FailedPrecondition(
            f"{archive} is of a service on PostgreSQL. Create an empty database, and name it: --database "
            "postgresql+psycopg://user:password@host/database."
        )
    if manifest.database == "sqlite" and database:
        raise FailedPrecondition(f"{archive} is of a service on SQLite, whose file is in it. Leave --database out.")


def _check_empty(root: Path) -> None:
    if root.is_symlink() or (root.exists() and (not root.is_dir() or any(root.iterdir()))):
        raise FailedPrecondition(
            f"{root} exists and is not an empty directory: a backup is never restored over something else. Name a new "
            "one (--state-dir), or move it away."
        )


@contextmanager
def _draft(root: Path) -> Iterator[Path]:
    """The directory beside `root` where it is put together, for one call at a time; removed at the end, unless the
    call is killed."""
    draft = root.with_name(f".{root.name}.restoring")
    draft.mkdir(mode=0o700, exist_ok=True)
    held = os.open(draft, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FailedPrecondition(f"Another `trainyard restore` is restoring {root}.") from error
        yield draft
        shutil.rmtree(draft)
    finally:
        os.close(held)


def _place_state(tree: Path, root: Path) -> dict[str, str]:
    """Put the single files where the local service has them. Returns what its options name and is not here."""
    state = tree / STATE_PART
    if not state.is_dir():
        return {}
    for path in sorted(state.iterdir()):
        path.rename(tree / (RESTORED_QUOTAS if path.name == _QUOTAS else path.name))
    state.rmdir()
    options_file = tree / _OPTIONS
    if not options_file.is_file():
        return {}
    options = json.loads(options_file.read_text(encoding="utf-8"))
    if options.get("quotas") and (tree / RESTORED_QUOTAS).is_file():
        options["quotas"] = str(root / RESTORED_QUOTAS)
        _write(options_file, json.dumps(options, indent=2))
    return {
        name: value
        for name, value in options.items()
        if name != "quotas" and isinstance(value, str) and value.startswith("/") and not Path(value).exists()
    }


def _write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)
    with create_private(path) as file:
        file.write(text.encode())
