"""The environment that is installed into: its packages, and those of its base."""

from __future__ import annotations

import ast
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from . import tree

BASE_FILE = "trainyard-base.pth"
"""What adds the base to an environment."""

FRAMEWORKS = ("jax", "jaxlib", "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "torch")

_MOST_BYTES = 1 << 20  # of a file with paths
_SEPARATORS = re.compile(r"[-_.]+")
_ADDED = re.compile(r"import site; site\.addsitedir\((.*)\)")
_HEADER = re.compile(r"^(?:Requires-Dist|Provides-Extra|Requires-Python):.*$", re.IGNORECASE | re.MULTILINE)
_NAMED = re.compile(r"^(Name|Version): *(.*?) *$", re.IGNORECASE | re.MULTILINE)
_LABEL = r"[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|post|rev|r|dev)[-_.]?\d*"
_VERSION = re.compile(rf"v?(\d+!)?\d+(\.\d+)*({_LABEL})*(\+[a-z0-9]+([-_.][a-z0-9]+)*)?", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


class Package(NamedTuple):
    """A package of the environment. `needs`: its requirements without those of its extras; `info`: its .dist-info
    directory."""

    name: str
    version: str
    needs: list[str]
    info: Path


def normal(name: str) -> str:
    return _SEPARATORS.sub("-", name).lower()


def brings_framework(names: Iterable[str]) -> bool:
    """Whether one of these packages, which were installed for a run, is a framework. Those of its base are then out of
    its sight: TensorFlow imports JAX where there is one, and both need other versions of the same packages."""
    return any(normal(name) in FRAMEWORKS for name in names)


def base_lines(directories: Iterable[str]) -> str:
    """Lines of a .pth file that add these directories as `site` does, with their .pth files, for editable installs."""
    return "".join(f"import site; site.addsitedir({directory!r})\n" for directory in directories)


class Environment:
    """The environment of an interpreter in `venv`/bin."""

    def __init__(self, python: Path) -> None:
        self.python = python
        self.venv = python.parent.parent
        (self.site_packages,) = (self.venv / "lib").glob("python*/site-packages")
        self._base_file = self.site_packages / BASE_FILE
        self._shown: set[Path] = set()

    def packages(self) -> list[Package]:
        """The packages that are installed in it; none of the base."""
        found = []
        for info in sorted(self.site_packages.glob("*.dist-info")):
            dist = metadata.Distribution.at(info)
            if not self._is_bases(info) and dist.metadata["Name"]:
                needs = [need for need in dist.requires or () if "extra ==" not in need]
                found.append(Package(dist.metadata["Name"], dist.version, needs, info))
        return found

    @property
    def sees_base(self) -> bool:
        return bool(self._base())

    def leave_base(self) -> None:
        """Take the base out of its sight for good."""
        if self._base_file.exists():
            lines = self._base_file.read_text(encoding="utf-8").splitlines(True)
            self._base_file.unlink()  # a kept environment may have it too
            self._base_file.write_text("".join(line for line in lines if not line.startswith("import ")), "utf-8")

    def show_base(self) -> None:
        """Let uv see the packages of the base, of which it knows nothing: by a .dist-info directory for each, with its
        metadata and no file. Where a newer version is needed, uv takes it away and installs that."""
        directories = self._base()
        if not directories:
            return
        own: set[str] = {normal(package.name) for package in self.packages()}
        for name, version, headers, entry_points in _distributions([*directories, *sys.path]):
            if normal(name) in own or not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
                continue
            own.add(normal(name))
            info = self.site_packages / f"{_SEPARATORS.sub('_', name)}-{version}.dist-info"
            if not info.exists():
                info.mkdir()
                self._shown.add(info)
                head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                files = {"METADATA": head + "".join(f"{line}\n" for line in headers)}
                if entry_points:
                    files["entry_points.txt"] = entry_points  # of setuptools, which may build
                files["RECORD"] = "".join(f"{info.name}/{file},,\n" for file in (*files, "RECORD"))
                for file, content in files.items():
                    (info / file).write_text(content, "utf-8")

    def hide_base(self) -> None:
        """Take away what `show_base` has left."""
        for info in filter(self._is_bases, self._shown):
            for file in info.glob("*"):
                file.unlink()
            if info.exists():
                info.rmdir()
        self._shown.clear()

    def _is_bases(self, info: Path) -> bool:
        """Whether `show_base` has made it, or nothing is there now. What uv and pip install has an INSTALLER."""
        return info in self._shown and not (info / "INSTALLER").exists()

    def _base(self) -> list[str]:
        if not self._base_file.exists():
            return []
        lines = self._base_file.read_text(encoding="utf-8").splitlines()
        return [ast.literal_eval(match[1]) for match in map(_ADDED.fullmatch, lines) if match]


def size(package: Package) -> int:
    """Bytes of the package's files, as its RECORD has them."""
    return sum(file.size or 0 for file in metadata.Distribution.at(package.info).files or ())


def _distributions(path: list[str]) -> Iterator[tuple[str, str, list[str], str]]:
    for dist in metadata.distributions(path=list(dict.fromkeys(path))):
        text = (dist.read_text("METADATA") or "").partition("\n\n")[0]
        # Without the descriptions, which `dist.metadata` parses with each look: a second of CPU for a large base.
        named = {key.lower(): value for key, value in _NAMED.findall(text)} or dist.metadata
        headers = _HEADER.findall(text) if text else [f"Requires-Dist: {need}" for need in dist.requires or ()]
        if named["name"]:
            yield named["name"], named["version"], headers, dist.read_text("entry_points.txt") or ""


def drop_tree(venv: Path) -> None:
    """Remove the program's files from an environment, unless a package is imported from there (`-e ./package`)."""
    source = venv / tree.NAME
    if source.is_dir() and not source.is_symlink() and not _is_imported_from(venv, source):
        shutil.rmtree(source)


def _is_imported_from(venv: Path, source: Path) -> bool:
    for site_packages in (venv / "lib").glob("python*/site-packages"):
        for path in (*site_packages.glob("*.pth"), *site_packages.glob("__editable__*.py")):
            is_read = path.is_file() and not path.is_symlink() and path.stat().st_size <= _MOST_BYTES
            if is_read and str(source).encode() in path.read_bytes():
                return True
    return False
