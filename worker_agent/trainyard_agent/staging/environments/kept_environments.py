"""Environments of runs that were made, kept for later runs of the same packages.

`kept-environments/KEY/` of the state directory has `venv`, the files of the environment, and `ready.json`. A run gets
hard links to the files in directories of its own, which nobody else can enter, and copies of those that name a path.
The key has all that decides on the content: who may share it, the packages, the interpreter and what is installed
beside it, and pip's settings. Where runs have users of their own the files belong to root, and no run can change them.

What pip has installed for the packages of a run is kept as well, alone, for packages with other content that require
the same: an edited program is installed over it without pip.
"""

import hashlib
import json
import logging
import os
import shutil
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard_agent.host.files import DamagedFile, read_json, remove_tree, write_json
from trainyard_agent.installer.environment import BASE_FILE
from trainyard_agent.staging.inside.files import files as own_files

AGE_S = 7 * 86400.0
"""After so long an environment is made anew: requirements without a version then get the newest."""

MOST, MOST_BYTES = 32, 10 * 10**9
"""Limits of all that are kept. Beyond them those go that were not used for longest."""

# It changes where a framework is installed.
_BASE_FILES = f"lib/python*/site-packages/{BASE_FILE}"
_READY = "ready.json"
_LARGEST_WITH_PATHS = 1 << 16
_OWN_LINKS = 2  # that of a run's environment, and that of the kept one
_log = logging.getLogger(__name__)


def key(
    project: str, packages: Sequence[Path], base: str, site_packages: Sequence[str], settings: Mapping[str, str]
) -> str:
    """The name of the environment of these packages, in their order. It changes when something is installed into or
    removed from the directories `site_packages` of the base, and with our own files in it. `settings` are pip's
    variables."""
    digests = [(path.name, _digest(path)) for path in packages]
    changed = [(directory, _changed_at(Path(directory))) for directory in (base, *site_packages)]
    content = [project, digests, changed, sorted(settings.items()), own_files()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def key_of_dependencies(owner: str, environment: str, requirements: object) -> str:
    """The name of what packages with these requirements lack, over the environment without packages that has that name.
    Code of the packages may run while it is installed, so it is for their owner alone."""
    return hashlib.sha256(json.dumps([owner, environment, requirements]).encode()).hexdigest()


def files(directory: Path, left_out: str = "") -> dict[Path, tuple[int, int]]:
    """Number and time of change of each file and link below `directory`/venv, but for what is in its `left_out`."""
    venv = directory / "venv"
    statuses = ((path, path.lstat()) for path in venv.rglob("*"))
    return {
        path.relative_to(venv): (status.st_ino, status.st_mtime_ns)
        for path, status in statuses
        if not stat.S_ISDIR(status.st_mode) and path.relative_to(venv).parts[0] != left_out
    }


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
        try:
            former = self._former_directory(name)
            if former is None:
                return False
            _copy(self._root / name / "venv", directory / "venv", copied=copied)
            _move_paths(directory / "venv", former, str(directory))
        except OSError as error:
            _log.warning("the environment %s is rebuilt: %s", name[:12], error)
            remove_tree(directory / "venv")
            return False
        return True

    def restore_dependencies(self, name: str, directory: Path) -> bool:
        """Add what is kept to `directory`/venv, which nobody else changes meanwhile. False: nothing is kept under that
        name, or something is in its place, and the environment is as it was. Raises OSError for one that is spoiled."""
        former = self._former_directory(name)
        source, target = self._root / name / "venv", directory / "venv"
        if former is None or not _is_free(source, target):
            return False
        for path in source.glob(_BASE_FILES):
            (target / path.relative_to(source)).unlink()
        _copy(source, target, copied=False)
        _move_paths(target, former, str(directory))
        return True

    def keep(self, name: str, directory: Path, *, copied: bool = False) -> None:
        """Keep `directory`/venv, which is complete. Removes what is too old or too much. `copied`: it is going to be
        changed, so what is kept has files of its own."""
        self._keep(name, directory, copied=copied)

    def keep_dependencies(
        self, name: str, directory: Path, before: Mapping[Path, tuple[int, int]], left_out: str = ""
    ) -> None:
        """Keep what was added to `directory`/venv since it had the `files` that are `before`, without `left_out`.
        Nothing if some of these were changed or removed."""
        now = files(directory, left_out)
        same = {path for path, file in before.items() if now.get(path) == file}
        if all(path.match(_BASE_FILES) for path in before.keys() - same):
            added = now.keys() - same
            self._keep(name, directory, only={*added, *(parent for path in added for parent in path.parents)})

    def _former_directory(self, name: str) -> str | None:
        """The directory of the run that it was made for, and a note of its use; None if there is none."""
        kept = self._root / name
        try:
            ready = read_json(kept / _READY)
            if ready is None or time.time() - float(ready["made"]) > AGE_S:
                return None
            os.utime(kept / _READY)
            return str(ready["directory"])
        except (OSError, KeyError, ValueError) as error:
            _log.warning("the environment %s is rebuilt: %s", name[:12], error)
            return None

    def _keep(self, name: str, directory: Path, *, copied: bool = False, only: Collection[Path] | None = None) -> None:
        kept = self._root / name
        try:
            _remove(kept)
            _copy(directory / "venv", kept / "venv", copied=copied, only=only)
            write_json(kept / _READY, {"directory": str(directory), "made": time.time(), "bytes": _size(kept)})
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


def _size(kept: Path) -> int:
    """Bytes of the files that the run it was made for has, and no other kept environment."""
    statuses = (path.lstat() for path in kept.rglob("*"))
    return sum(status.st_size for status in statuses if stat.S_ISDIR(status.st_mode) or status.st_nlink <= _OWN_LINKS)


def _is_free(source: Path, target: Path) -> bool:
    """Whether all of `source` has room in `target`: its directories are directories there, or missing like its files,
    but for the file that it replaces."""
    for parent, directories, names in os.walk(source):
        there = target / Path(parent).relative_to(source)
        for path in (there / name for name in directories):
            if path.is_symlink() or (path.exists() and not path.is_dir()):
                return False
        for path in (there / name for name in names):
            if os.path.lexists(path) and not path.relative_to(target).match(_BASE_FILES):
                return False
    return True


def _copy(source: Path, target: Path, *, copied: bool, only: Collection[Path] | None = None) -> None:
    """Directories with hard links to all files, or with copies; links stay links. Raises OSError."""
    copy = shutil.copy2 if copied else os.link
    directories, modes = [(str(source), str(target))], []
    while directories:
        here, there = directories.pop()
        os.makedirs(there, exist_ok=True)  # noqa: PTH103 - pathlib takes three times as long as all of this
        modes.append((there, stat.S_IMODE(os.stat(here).st_mode)))  # noqa: PTH116
        with os.scandir(here) as entries:
            for entry in entries:
                if only is not None and Path(entry.path).relative_to(source) not in only:
                    continue
                path = f"{there}/{entry.name}"
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), path)  # noqa: PTH115, PTH211
                elif entry.is_dir():
                    directories.append((entry.path, path))
                else:
                    copy(entry.path, path)
    for path, mode in reversed(modes):
        os.chmod(path, mode)  # noqa: PTH101


def _move_paths(venv: Path, former: str, now: str) -> None:
    """Replace the directory of the run for which it was made: in its scripts, pyvenv.cfg and .pth files."""
    for path, status in _texts(venv):
        content = path.read_bytes() if status.st_size <= _LARGEST_WITH_PATHS else b""
        if former.encode() in content:
            path.unlink()  # the kept file has another link
            path.write_bytes(content.replace(former.encode(), now.encode()))
            path.chmod(status.st_mode & 0o7777)
            cache = path.with_name("__pycache__")
            for compiled in cache.glob(f"{path.stem}.*.pyc") if not cache.is_symlink() else ():
                compiled.unlink()  # it may have the same size and second as what it was compiled of


def _texts(venv: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files that may name a path. Packages may have left pipes there, and links that lead elsewhere."""
    own = venv.resolve()
    for directory in (venv, venv / "bin", *venv.glob("lib/python*/site-packages")):
        if not directory.resolve().is_relative_to(own):
            continue
        for entry in os.scandir(directory):
            if entry.is_file(follow_symlinks=False) and (directory.name == "bin" or _names_paths(entry.name)):
                yield Path(entry.path), entry.stat(follow_symlinks=False)


def _names_paths(name: str) -> bool:
    is_finder = name.startswith("__editable__") and name.endswith(".py")
    return is_finder or name.endswith(".pth") or name == "pyvenv.cfg"
