"""Makes an archive of a Python package: a wheel of its files, or the source distribution that its project declares.

A project's build runs in a temporary copy; the user's tree is never written to. Times, owners and order in the archive
are fixed, so that the same source gives the same file and is uploaded once.
"""

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard_cli.submission import wheels
from trainyard_protocol.errors import InvalidArgument

ARCHIVE_SUFFIXES = (".tar.gz", ".tgz", ".zip", ".whl")
BUILD_TIMEOUT_S = 300.0
MAX_BYTES = 512 * 2**20
"""The largest package that a server accepts by default."""

_GZIP = b"\x1f\x8b"
_EPOCH = 315_532_800  # 1980-01-01: the earliest time in a zip, and so in a wheel
_SKIPPED = frozenset({"__pycache__", "build", "dist", "node_modules", "venv", "env"})
_LEGACY_BACKEND = "setuptools.build_meta:__legacy__"

_BUILD = """\
import importlib, sys
sys.path[:0] = sys.argv[3:]
module, _, path = sys.argv[1].partition(":")
backend = importlib.import_module(module)
for name in filter(None, path.split(".")):
    backend = getattr(backend, name)
backend.build_sdist(sys.argv[2])
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """Package file on disk. `sha256` is hex, `size` bytes."""

    path: Path
    sha256: str
    size: int


def check_package(directory: Path) -> None:
    """Check that a directory can be a Python package. Raises InvalidArgument."""
    if not directory.is_dir():
        raise InvalidArgument(f"Source directory [{directory}] is not a valid directory.")
    if not directory.resolve().name.isidentifier():
        raise InvalidArgument(f"[{directory}] is not a valid Python package: its name cannot be imported.")


def check_archive(path: Path) -> Archive:
    """Read and check a built package. Raises InvalidArgument unless pip could install it."""
    if not path.name.endswith(ARCHIVE_SUFFIXES):
        allowed = ", ".join(ARCHIVE_SUFFIXES)
        raise InvalidArgument(f"The package {path} cannot be installed; a package ends in one of {allowed}.")
    try:
        with path.open("rb") as file:
            is_gzip = path.suffix in (".gz", ".tgz") and file.peek(2).startswith(_GZIP)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not is_gzip and not zipfile.is_zipfile(path):
            raise InvalidArgument(
                f"The package {path} is no archive, whatever its name. `python -m build` makes one of a project."
            )
        return Archive(path, digest, path.stat().st_size)
    except OSError as error:
        raise InvalidArgument(f"The package {path} cannot be read: {error.strerror}.") from error


@contextmanager
def build(package: Path, requirements: Sequence[str] = ()) -> Iterator[Archive]:
    """Make the package's archive in a temporary directory.

    A setup.py or pyproject.toml beside the package decides content and requirements, and gives a source distribution;
    otherwise it is the wheel `<package>-0.0.0` with everything under the package. Needs no network. Raises
    InvalidArgument with the end of the build's output.
    """
    check_package(package)
    package = package.resolve()
    with tempfile.TemporaryDirectory(prefix="trainyard-package-") as scratch:
        source, out = Path(scratch, "source"), Path(scratch, "out")
        out.mkdir()
        backend = _own_backend(package.parent)
        if backend is None:
            archive = _wheel(package, source, out, requirements)
        else:
            archive = _sdist(package, source, out, *backend)
        yield check_archive(archive)


@contextmanager
def build_project(project: Path) -> Iterator[Archive | None]:
    """Make the source distribution that a directory's setup.py or pyproject.toml declares; None without one. Raises
    InvalidArgument with the end of the build's output."""
    backend = _own_backend(project)
    if backend is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="trainyard-package-") as scratch:
        source, out = Path(scratch, "source"), Path(scratch, "out")
        out.mkdir()
        _copy(project, source)
        yield check_archive(_distribution(project, source, out, *backend))


def declares_itself(project: Path) -> bool:
    """Whether a directory has a setup.py or pyproject.toml that declares a package. Raises InvalidArgument."""
    return _own_backend(project) is not None


def files_of(directory: Path) -> tuple[list[Path], list[Path]]:
    """The files below a directory that are packed, and the empty directories: none that are hidden, of an environment
    or of a build.

    Raises InvalidArgument if they are larger than a package may be.
    """
    files: list[Path] = []
    empty: list[Path] = []
    size = 0
    for parent, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if not _is_skipped(Path(parent, name)))
        if not directories and not names and Path(parent) != directory:
            empty.append(Path(parent))
        for path in (Path(parent, name) for name in sorted(names)):
            if not path.is_file() or _is_skipped(path):
                continue
            files.append(path)
            size += path.stat().st_size
            if size > MAX_BYTES:
                raise InvalidArgument(
                    f"{directory} has more than {MAX_BYTES // 2**20} MiB of files, too much for a package. Give the "
                    "script alone (--package-path FILE.py), or move the data elsewhere."
                )
    return files, empty


def _own_backend(project: Path) -> tuple[str, tuple[str, ...]] | None:
    """The project's build backend and its extra paths; None if it declares none."""
    try:
        pyproject = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        pyproject = {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgument(f"{project / 'pyproject.toml'}: {error}") from error
    system = pyproject.get("build-system")
    if isinstance(system, dict) and "build-backend" in system:
        return str(system["build-backend"]), tuple(map(str, system.get("backend-path", ())))
    if "project" in pyproject or (project / "setup.py").is_file():
        return _LEGACY_BACKEND, ()
    return None


def _copy(source: Path, target: Path, keep: Collection[str] = ()) -> None:
    """Copy a tree without hidden directories, environments and build output."""

    def ignored(directory: str, names: list[str]) -> set[str]:
        top = Path(directory) == source
        return {name for name in names if not (top and name in keep) and _is_skipped(Path(directory, name))}

    try:
        shutil.copytree(source, target, ignore=ignored, ignore_dangling_symlinks=True)
    except shutil.Error as error:  # of all files together
        _, _, reason = error.args[0][0]
        raise InvalidArgument(f"{source} cannot be packaged: {reason.split('] ', 1)[-1]}.") from error
    except OSError as error:
        raise InvalidArgument(f"{source} cannot be packaged: {error.strerror}.") from error


def _is_skipped(path: Path) -> bool:
    if path.suffix == ".pyc" or path.suffix == ".egg-info":
        return True
    if not path.is_dir():  # sockets and pipes cannot be copied
        return not path.is_file() and not path.is_symlink()
    return path.name in _SKIPPED or path.name.startswith(".") or (path / "pyvenv.cfg").is_file()


def _wheel(package: Path, source: Path, out: Path, requirements: Sequence[str]) -> Path:
    """The wheel of all files under a package."""
    _copy(package, source / package.name)
    _add_init(source / package.name)
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    return wheels.write(out, package.name, [wheels.WheelFile(name, source / name) for name in names], requirements)


def _sdist(package: Path, source: Path, out: Path, backend: str, paths: tuple[str, ...]) -> Path:
    """The source distribution of the package's project, made by its backend."""
    _copy(package.parent, source, keep={package.name})
    _add_init(source / package.name)
    return _distribution(package, source, out, backend, paths)


def _distribution(shown: Path, source: Path, out: Path, backend: str, paths: tuple[str, ...]) -> Path:
    """The source distribution of a copy of a project. `shown` is what messages name."""
    _run(source, out, backend, paths, shown)
    built = sorted(out.iterdir())
    if len(built) != 1 or not built[0].name.endswith(".tar.gz"):
        raise InvalidArgument(f"Packaging {shown} made no .tar.gz archive.")
    _normalise(built[0])
    return built[0]


def _add_init(package: Path) -> None:
    """Make a directory a package, as older programs are not."""
    (package / "__init__.py").touch()


def _run(source: Path, out: Path, backend: str, paths: tuple[str, ...], package: Path) -> None:
    extra = [str(source), *(str(source / path) for path in paths)]
    try:
        done = subprocess.run(
            [sys.executable, "-c", _BUILD, backend, str(out), *extra],
            cwd=source,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidArgument(f"Packaging {package} took longer than {BUILD_TIMEOUT_S:.0f} s.") from None
    if done.returncode == 0:
        return
    tail = "\n".join(f"    {line}" for line in done.stdout.rstrip().splitlines()[-12:])
    module = backend.partition(":")[0]
    hint = ""
    if f"No module named {module.partition('.')[0]!r}" in done.stdout:
        hint = f" It needs {module}, which is not installed. Install it, or give a built archive with --packages."
    raise InvalidArgument(f"{package} could not be packaged.{hint} Output of the build:\n{tail}")


def _normalise(archive: Path) -> None:
    """Rewrite a .tar.gz so that it depends only on names, modes and contents."""
    result = io.BytesIO()
    with (
        tarfile.open(archive, "r:gz") as source,
        gzip.GzipFile(fileobj=result, mode="wb", filename="", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda m: m.name):
            member.mtime = _EPOCH
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    archive.write_bytes(result.getvalue())
