"""The packages that a run's environment has, as requirements of pip: by the names of their directories, which takes
milliseconds, and runs nothing."""

import ast
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from trainyard_agent.installer.environment import BASE_FILE

_DIST_INFO = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?)-([A-Za-z0-9][A-Za-z0-9._+!]{0,100})\.dist-info")
_ADDED = re.compile(r"import site; site\.addsitedir\((.*)\)")
_SEPARATORS = re.compile(r"[-_.]+")
_LARGEST_BASE_FILE = 1 << 16


def requirements(directory: Path) -> str:
    """Lines `NAME==VERSION` of what the environment in `directory`/venv sees, its own packages and those of its base.

    Left out are the packages of the job (`directory`/NUMBER/FILE), and what was installed from a directory or a URL:
    no index has it.
    """
    own = {_normal(path.name.partition("-")[0]) for path in directory.glob("[0-9]*/*")}
    found: dict[str, str] = {}
    for site_packages in (directory / "venv" / "lib").glob("python*/site-packages"):
        base = list(_base(site_packages / BASE_FILE))
        for name, version in (*_distributions(reversed(base)), *_distributions([site_packages])):
            found[_normal(name)] = f"{name}=={version}"
    return "".join(f"{found[name]}\n" for name in sorted(found.keys() - own))


def _base(pth: Path) -> Iterator[Path]:
    """The directories of the base, which the environment adds; none if its packages bring their own framework."""
    if not pth.is_file() or pth.stat().st_size > _LARGEST_BASE_FILE:
        return
    for line in pth.read_text(encoding="utf-8", errors="replace").splitlines():
        if match := _ADDED.fullmatch(line):
            yield Path(ast.literal_eval(match[1]))


def _distributions(directories: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Name and version of each distribution out of an index; of the same in several directories the last is seen."""
    for directory in directories:
        with suppress(FileNotFoundError):
            yield from _listed(directory, directory.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _listed(directory: Path, changed_ns: int) -> Sequence[tuple[str, str]]:  # noqa: ARG001 - part of the key
    """Those of one directory, which each job of a machine sees: it is read again when something in it has changed."""
    with os.scandir(directory) as entries:
        matches = [_DIST_INFO.fullmatch(name) for name in sorted(entry.name for entry in entries)]
    return tuple(
        (match[1], match[2]) for match in matches if match and not (directory / match[0] / "direct_url.json").exists()
    )


def _normal(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()
