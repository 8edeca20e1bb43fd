"""Checks a package's archive before anything unpacks it, in a limited process of its own (`runtimes/fork_server.py`).

A few hundred bytes can keep Python's tarfile busy for hours or let it take all memory, so no other process opens an
archive before this one has read all of it. With a directory, a plain wheel of pure Python is then unpacked into it, as
pip would, and compiled. Prints JSON: `refused`, one sentence, or "", and the fields of `archives.Inspection`. A process
that exceeds its limits is ended by the kernel.
"""

import hashlib
import json
import py_compile
import re
import resource
import shutil
import signal
import stat
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_MEMORY = 1 << 29
MAX_ENTRIES = 100_000
MAX_BYTES = 1 << 33  # of all files, unpacked
MAX_PATH, MAX_DEPTH = 1024, 64
WALL_PER_CPU = 4  # a busy machine gives each process a part of its CPUs

_MAX_PYPROJECT_BYTES = 1 << 20
_PYPROJECT = re.compile(r"(\./)?[^/]+/pyproject\.toml")
_REQUIREMENT_NAME = re.compile(r"\s*([A-Za-z0-9._-]+)")
_SETUPTOOLS = ("setuptools.build_meta", "setuptools.build_meta:__legacy__")
_PURE_WHEEL = re.compile(r"([^-]+-[^-]+)-py3-none-any\.whl")
_PLAIN_PATH = re.compile(r"(?:(?!\.\.?/)[^/\\\0]+/)*(?!\.\.?$)[^/\\\0]+", re.DOTALL)
_PURELIB = re.compile(rb"(?mi)^Root-Is-Purelib:\s*true\s*$")
_REQUIRES_PYTHON = re.compile(rb"(?mi)^Requires-Python:")
_DEPENDENCY = re.compile(rb"(?mi)^Requires-Dist:")
_MOST_UNPACKED, _MOST_COMPILED = 1 << 28, 1 << 22  # bytes: what takes a few seconds. pip is given larger wheels
_MAX_REASON = 300
_READ_BYTES = 1 << 20
_ENCRYPTED = 1  # a flag of an entry of a zip file


class ArchiveRefused(Exception):
    """An archive that is not given to pip: the message says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`link` is the target of a link, relative to the archive; "" for any other entry."""

    name: str
    size: int
    mode: int
    link: str = ""
    special: bool = False


def main(package: str, cpu_s: str, site_packages: str = "") -> None:
    _limit(int(cpu_s))
    refused, isolated, metadata = "", False, None
    try:
        isolated = needs_isolation(Path(package))
        if site_packages:
            metadata = unpack(Path(package), Path(site_packages))
    except ArchiveRefused as error:
        refused = str(error)
    except OSError:
        metadata = None  # such as no room: pip meets it again, and says so
    except (MemoryError, RecursionError):
        refused = f"it cannot be read in {MAX_MEMORY >> 20} MiB of memory"
    found = {
        "isolated": isolated,
        "unpacked": metadata is not None,
        "depends": metadata is not None and _DEPENDENCY.search(metadata) is not None,
        "metadata": "" if metadata is None else hashlib.sha256(metadata).hexdigest(),
    }
    print(json.dumps({"refused": refused, **found}))


def needs_isolation(package: Path) -> bool:
    """Whether a build needs more than setuptools, so that pip must fetch its build tools. Raises ArchiveRefused.

    False for a wheel, for a package without pyproject.toml, and for one whose pyproject.toml is not TOML: pip reports
    its error.
    """
    # As pip decides: a zip file may have any name.
    zipped = package.suffix in (".zip", ".whl") or zipfile.is_zipfile(package)
    try:
        pyproject = _check_zip(package) if zipped else _check_tar(package)
    except (ArchiveRefused, MemoryError, RecursionError):
        raise
    except Exception as error:  # the readers have no base class of their errors, and pip opens nothing unread
        reason = str(error)[:_MAX_REASON] or type(error).__name__
        raise ArchiveRefused(f"its archive cannot be read: {reason}") from error
    try:
        build_system = tomllib.loads(pyproject.decode()).get("build-system", {})
    except ValueError:
        return False
    return package.suffix != ".whl" and _asks_for_more(build_system)


def unpack(package: Path, site_packages: Path) -> bytes | None:
    """Unpack a checked wheel and return its METADATA. None, and nothing is unpacked, if pip has more to do than that:
    to build, to choose a version of Python, to make scripts, or to put files elsewhere."""
    distribution = _PURE_WHEEL.fullmatch(package.name)
    if distribution is None:
        return None
    info = f"{distribution[1]}.dist-info"
    with zipfile.ZipFile(package) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith("/")]
        inside = {name.partition("/")[2] for name in names if name.startswith(f"{info}/")}
        top = {name.partition("/")[0] for name in names}
        if (
            len(set(names)) != len(names)
            or not all(map(_PLAIN_PATH.fullmatch, names))
            or any(name.endswith((".dist-info", ".data")) for name in top - {info})
            or not {"METADATA", "WHEEL", "RECORD"} <= inside
            or "entry_points.txt" in inside
            or sum(file.file_size for file in wheel.infolist()) > _MOST_UNPACKED
            or _PURELIB.search(wheel.read(f"{info}/WHEEL")) is None
        ):
            return None
        metadata = wheel.read(f"{info}/METADATA")
        if _REQUIRES_PYTHON.search(metadata):
            return None
        resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_BYTES, MAX_BYTES))
        for name in names:
            path = site_packages / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(name) as source, path.open("wb") as target:
                shutil.copyfileobj(source, target)
            if wheel.getinfo(name).external_attr >> 16 & 0o111:
                path.chmod(0o755)
    _compile([site_packages / name for name in names if name.endswith(".py")], site_packages.parent.name)
    return metadata


def _compile(sources: list[Path], python: str) -> None:
    """Write the bytecode of modules, unless another version of Python will read it, or there is much of them."""
    if python == f"python{sys.version_info.major}.{sys.version_info.minor}":
        if sum(path.stat().st_size for path in sources) <= _MOST_COMPILED:
            for path in sources:
                py_compile.compile(str(path), quiet=2)


class Entries:
    """The entries of one archive. Raises ArchiveRefused at the first that pip must not see."""

    def __init__(self) -> None:
        self._count = self._bytes = 0
        self._through: set[str] = set()
        self._links: set[str] = set()

    def add(self, entry: Entry) -> None:
        shown = repr(entry.name[:100])
        self._count, self._bytes = self._count + 1, self._bytes + max(entry.size, 0)
        if self._count > MAX_ENTRIES:
            raise ArchiveRefused(f"it has more than {MAX_ENTRIES} entries")
        if self._bytes > MAX_BYTES:
            raise ArchiveRefused(f"its files have more than {MAX_BYTES >> 30} GiB")
        if len(entry.name) > MAX_PATH or entry.name.count("/") > MAX_DEPTH:
            raise ArchiveRefused(f"{shown} has more than {MAX_PATH} characters or {MAX_DEPTH} directories")
        if entry.special:
            raise ArchiveRefused(f"{shown} is a device or a pipe, not a file")
        if stat.S_ISREG(entry.mode) and entry.mode & (stat.S_ISUID | stat.S_ISGID):
            raise ArchiveRefused(f"{shown} has the setuid or setgid bit")
        steps = _steps(entry.name)
        if steps is None:
            raise ArchiveRefused(f"{shown} is outside the package")
        self._through.update(steps[:-1])
        if entry.link:
            target = _steps(entry.link)
            if target is None:
                raise ArchiveRefused(f"{shown} is a link out of the package")
            self._through.update(target[:-1])
            self._links.update(steps[-1:])

    def finish(self) -> None:
        """Check what depends on all entries: a path through a link ends elsewhere than it says."""
        if through := self._through & self._links:
            raise ArchiveRefused(f"the link {min(through)[:100]!r} is used as a directory")


def _steps(path: str) -> list[str] | None:
    """The directories on the way, and the end; None for an absolute path and for one that leaves the archive."""
    steps: list[str] = []
    parts: list[str] = []
    for part in path.split("/"):
        if part == ".." and parts:
            parts.pop()
        elif part == "..":
            return None
        elif part not in ("", "."):
            parts.append(part)
        steps.append("/".join(parts))
    return None if path.startswith("/") else steps


def _check_zip(package: Path) -> bytes:
    """The content of the top directory's pyproject.toml; empty if there is none."""
    entries = Entries()
    with zipfile.ZipFile(package) as archive:
        for info in archive.infolist():
            mode = stat.S_IFREG | stat.S_IMODE(info.external_attr >> 16)
            entries.add(Entry(info.filename, info.file_size, mode))
        entries.finish()
        for info in archive.infolist():
            if info.flag_bits & _ENCRYPTED:
                raise ArchiveRefused(f"{info.filename[:100]!r} is encrypted")
            with archive.open(info) as file:
                while file.read(_READ_BYTES):
                    pass
        name = next(filter(_PYPROJECT.fullmatch, archive.namelist()), None)
        if name is None:
            return b""
        with archive.open(name) as file:
            return file.read(_MAX_PYPROJECT_BYTES)


def _check_tar(package: Path) -> bytes:
    """The content of the top directory's pyproject.toml; empty if there is none."""
    entries, text = Entries(), b""
    with tarfile.open(package, "r:gz", encoding="utf-8") as tar:  # as pip does
        while (member := tar.next()) is not None:
            entries.add(_entry(member))
            if not text and member.isfile() and _PYPROJECT.fullmatch(member.name):
                content = tar.extractfile(member)
                text = content.read(_MAX_PYPROJECT_BYTES) if content else b""
            tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
        assert tar.fileobj is not None
        tar.fileobj.seek(tar.offset)
        if any(tar.fileobj.read(tarfile.BLOCKSIZE)):  # tarfile ends at a damaged header without an error
            raise ArchiveRefused(f"its tar file is damaged at byte {tar.offset}")
    entries.finish()
    return text


def _entry(member: tarfile.TarInfo) -> Entry:
    link = ""
    if member.issym():  # relative to its own directory
        directory = member.name.rpartition("/")[0]
        absolute = member.linkname.startswith("/")
        link = member.linkname if absolute else f"{directory}/{member.linkname}".lstrip("/")
    elif member.islnk():
        link = member.linkname
    is_allowed = member.isfile() or member.isdir() or member.issym() or member.islnk()
    mode = (stat.S_IFREG if member.isfile() else 0) | stat.S_IMODE(member.mode)
    return Entry(member.name, member.size, mode, link, special=not is_allowed)


def _asks_for_more(build_system: Any) -> bool:
    if not isinstance(build_system, dict):
        return False
    if build_system.get("build-backend", _SETUPTOOLS[0]) not in _SETUPTOOLS:
        return True
    requires = build_system.get("requires", ())
    names = (_REQUIREMENT_NAME.match(str(need)) for need in (requires if isinstance(requires, list) else ()))
    return any(name is None or name[1].lower() not in ("setuptools", "wheel") for name in names)


def _limit(cpu_s: int) -> None:
    """Limit this process; it ends by SIGXCPU or SIGALRM, and without an agent too."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, MAX_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(cpu_s * WALL_PER_CPU)
