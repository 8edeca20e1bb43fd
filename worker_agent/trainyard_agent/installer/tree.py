"""The program's files, unpacked for the installation of what they declare. Nothing in it leads out of it."""

from __future__ import annotations

import os
import shutil
import tarfile
import urllib.parse
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from .output import Refused

NAME = "trainyard-source"
"""Directory of the environment that has them, as long as they are needed."""

_MOST_ENTRIES, _MOST_BYTES = 100_000, 1 << 33


class SourceTree:
    """The files below `root`. `open_to` gives the directories outside that the site's own settings name."""

    def __init__(self, root: Path, open_to: Callable[[], Iterable[str]] = tuple) -> None:
        self.root = root
        self._real = Path(os.path.realpath(root))
        self._open_to = open_to

    def path(self, name: str, where: str, base: Path | None = None) -> Path:
        """The path that a declaration names, relative to `base`, by default the root. Raises Refused for one that
        leads elsewhere, or to nothing."""
        path = Path(os.path.realpath((base or self.root) / name))
        if path != self._real and self._real not in path.parents:
            if str(path) in map(os.path.realpath, self._open_to()):
                return path
            raise Refused(
                f"{where}: {name} is outside the uploaded files. Put it below the program's directory, or name the "
                "package by its version or its URL."
            )
        if not path.exists():
            raise Refused(f"{where}: {name} is not among the files that were uploaded.")
        return path

    def url(self, url: str, where: str, base: Path | None = None) -> str:
        """The same for a URL: one of a file is absolute then. All others are as they were."""
        scheme, _, rest = url.partition(":")
        if not scheme.lower().endswith("file"):
            return url
        parts = urllib.parse.urlsplit(rest)
        path = self.path(urllib.parse.unquote(parts.path), where, base)
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        return f"{scheme}:{urllib.parse.quote(f'//{path}')}{fragment}"


def unpack(archive: Path, root: Path) -> None:
    """Unpack a tar file into the directory `root`, which is made. Raises Refused where it leads out of it."""
    root.mkdir()
    links: list[tuple[Path, str]] = []
    number = size = 0
    try:
        with tarfile.open(archive, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            for member in tar:
                number, size = number + 1, size + max(member.size, 0)
                if number > _MOST_ENTRIES or size > _MOST_BYTES:
                    raise Refused(f"The program has more than {_MOST_ENTRIES} files or {_MOST_BYTES >> 30} GiB.")
                target = root / _inside(member.name)
                if member.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                if member.issym():
                    links.append((target, member.linkname))
                elif member.islnk():
                    shutil.copy2(root / _inside(member.linkname), target)
                elif (content := tar.extractfile(member)) is not None:
                    with target.open("xb") as file:
                        shutil.copyfileobj(content, file)
                    target.chmod(member.mode & 0o777 | 0o600)
                    os.utime(target, (member.mtime, member.mtime))
                else:
                    raise Refused(f"{member.name!r} of the program is a device or a pipe, not a file.")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise Refused(f"The program's files cannot be unpacked: {error}.") from error
    _link(links, root)


def _inside(name: str) -> str:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise Refused(f"{name!r} of the program points outside it.")
    return str(path)


def _link(links: list[tuple[Path, str]], root: Path) -> None:
    """Make the links last, when nothing is written any more that could follow one."""
    try:
        for path, target in links:
            path.symlink_to(target)
    except OSError as error:
        raise Refused(f"The program's files cannot be unpacked: {error}.") from error
    real = Path(os.path.realpath(root))
    for path, target in links:
        end = Path(os.path.realpath(path))
        if Path(target).is_absolute() or (end != real and real not in end.parents):
            raise Refused(f"The link {str(path.relative_to(root))!r} of the program points outside it.")
