"""Environments of runs that were made, kept for later runs of the same packages.

`kept-environments/KEY/` of the state directory has `venv`, the files of the environment, and `ready.json`. A run gets
hard links to the files in directories of its own, which nobody else can enter, and copies of those that name a path.
The key has all that decides on the content: who may share it, the packages, the interpreter and what is installed
beside it, and pip's settings. Where runs have users of their own the files belong to root, and no run can change them.
"""

import hashlib
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard_agent.host.files import DamagedFile, read_json, remove_tree, write_json
from trainyard_agent.staging import lost_files

AGE_S = 7 * 86400.0
"""After so long an environment is made anew: requirements without a version then get the newest."""

MOST, MOST_BYTES = 32, 10 * 10**9
"""Limits of all that are kept. Beyond them those go that were not used for longest."""

_READY = "ready.json"
_LARGEST_WITH_PATHS = 1 << 16
_log = logging.getLogger(__name__)


def key(
    project: str, packages: Sequence[Path], base: str, site_packages: Sequence[str], settings: Mapping[str, str]
) -> str:
    """The name of the environment of these packages, in their order. It changes when something is installed into or
    removed from the directories `site_packages` of the base, and with our own file in it. `settings` are pip's
    variables."""
    digests = [(path.name, _digest(path)) for path in packages]
    changed = [(directory, _changed_at(Path(directory))) for directory in (base, *site_packages)]
    content = [project, digests, changed, sorted(settings.items()), lost_files.pth()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


class KeptEnvironments:
    """Those below `root`, which is made. All errors of the disk mean that nothing is kept. Calls must not overlap: what
    one has not completed, another would remove."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in root.iterdir():
            if not (path / _READY).exists():  # of an agent that was killed
                remove_tree(path)

    def restore(self, name: str, directory: Path, *, copied: bool = False) -> bool:
        """Make `directory`/venv of what is kept. False: nothing is kept under that name, and nothing was made.
        `copied`: it is going to be changed, so the files are its own."""
        kept = self._root / name
        try:
            ready = read_json(kept / _READY)
            if ready is None or time.time() - float(ready["made"]) > AGE_S:
                return False
            _copy(kept / "venv", directory / "venv", copied=copied)
            _move_paths(directory / "venv", str(ready["directory"]), str(directory))
            os.utime(kept / _READY)
        except (OSError, KeyError, ValueError) as error:
            _log.warning("the environment %s is made anew: %s", name[:12], error)
            remove_tree(directory / "venv")
            return False
        return True

    def keep(self, name: str, directory: Path, *, copied: bool = False) -> None:
        """Keep `directory`/venv, which is complete. Removes what is too old or too much. `copied`: it is going to be
        changed, so what is kept has files of its own."""
        kept = self._root / name
        try:
            _remove(kept)
            _copy(directory / "venv", kept / "venv", copied=copied)
            size = sum(path.lstat().st_size for path in kept.rglob("*"))
            write_json(kept / _READY, {"directory": str(directory), "made": time.time(), "bytes": size})
            self._evict()
        except OSError as error:
            _log.warning("the environment in %s is not kept: %s", directory, error)
            if not (kept / _READY).exists():
                remove_tree(kept)

    def _evict(self) -> None:
        kept = [(path, path / _READY, _read_ready(path)) for path in self._root.iterdir()]
        kept.sort(key=lambda item: item[1].stat().st_mtime if item[1].exists() else 0.0, reverse=True)
        total = 0
        for number, (path, _, ready) in enumerate(kept, 1):
            total += int(ready.get("bytes", 0))
            is_old = time.time() - float(ready.get("made", 0.0)) > AGE_S
            if is_old or number > MOST or total > MOST_BYTES:
                _remove(path)


def _read_ready(path: Path) -> dict[str, Any]:
    """The content of its ready.json; nothing, as of one that is too old, where that is damaged."""
    try:
        return read_json(path / _READY) or {}
    except DamagedFile:
        return {}


def _remove(path: Path) -> None:
    """Remove one, which counts as incomplete from the first step on. Raises OSError."""
    (path / _READY).unlink(missing_ok=True)
    remove_tree(path)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _copy(source: Path, target: Path, *, copied: bool) -> None:
    """New directories with hard links to all files, or with copies; links stay links. Raises OSError."""
    try:
        shutil.copytree(source, target, symlinks=True, copy_function=shutil.copy2 if copied else os.link)
    except shutil.Error as error:
        path, _, reason = error.args[0][0]  # the first of one for each file
        raise OSError(0, reason, path) from None


def _move_paths(venv: Path, former: str, now: str) -> None:
    """Replace the directory of the run for which it was made: in its scripts, pyvenv.cfg and .pth files."""
    for path in _texts(venv):
        status = path.lstat()
        content = path.read_bytes() if status.st_size <= _LARGEST_WITH_PATHS else b""
        if former.encode() in content:
            path.unlink()  # the kept file has another link
            path.write_bytes(content.replace(former.encode(), now.encode()))
            path.chmod(status.st_mode & 0o7777)


def _texts(venv: Path) -> Iterator[Path]:
    """The files that may name a path. Packages may have left pipes there, and links that lead elsewhere."""
    own = venv.resolve()
    pth_files = venv.glob("lib/python*/site-packages/*.pth")
    for path in (*(venv / "bin").iterdir(), venv / "pyvenv.cfg", *pth_files):
        if stat.S_ISREG(path.lstat().st_mode) and path.parent.resolve().is_relative_to(own):
            yield path
