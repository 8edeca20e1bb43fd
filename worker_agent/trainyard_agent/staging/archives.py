"""Inspection of package archives without unpacking them."""

import re
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

_PACKAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+!-]*\.(tar\.gz|tgz|zip|whl)")
_PYPROJECT = re.compile(r"(\./)?[^/]+/pyproject\.toml")
_REQUIREMENT_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)")
_SETUPTOOLS = ("setuptools.build_meta", "setuptools.build_meta:__legacy__")
_MAX_PYPROJECT_BYTES = 1 << 20


def is_package_name(name: str) -> bool:
    """Whether it is a plain file name with a suffix that pip installs."""
    return _PACKAGE_NAME.fullmatch(name) is not None


def needs_isolation(package: Path) -> bool:
    """Whether a build needs more than setuptools, so that pip must fetch its build tools.

    False for a wheel, for a package without pyproject.toml, and for an unreadable one: pip reports its error.
    """
    if package.suffix == ".whl":
        return False
    try:
        project = tomllib.loads(_pyproject(package))
    except (OSError, ValueError, tarfile.TarError, zipfile.BadZipFile, EOFError):
        return False
    return _asks_for_more(project.get("build-system", {}))


def _asks_for_more(build_system: Any) -> bool:
    if not isinstance(build_system, dict):
        return False
    if build_system.get("build-backend", _SETUPTOOLS[0]) not in _SETUPTOOLS:
        return True
    names = (_REQUIREMENT_NAME.match(str(need)) for need in build_system.get("requires", ()))
    return any(name is None or name[1].lower() not in ("setuptools", "wheel") for name in names)


def _pyproject(package: Path) -> str:
    """The text of the top directory's pyproject.toml; "" if there is none."""
    if package.suffix == ".zip":
        with zipfile.ZipFile(package) as archive:
            name = next(filter(_PYPROJECT.fullmatch, archive.namelist()), None)
            if name is None:
                return ""
            with archive.open(name) as file:
                return file.read(_MAX_PYPROJECT_BYTES).decode()
    with tarfile.open(package) as tar:
        for member in tar:
            if member.isfile() and _PYPROJECT.fullmatch(member.name):
                content = tar.extractfile(member)
                return content.read(_MAX_PYPROJECT_BYTES).decode() if content else ""
    return ""
