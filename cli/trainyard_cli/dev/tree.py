"""The files of a directory that `jobs dev` synchronises: which there are, and their content."""

import hashlib
import os
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument, shown
from trainyard_protocol.fields import sized

MAX_FILE_BYTES = 100 * 10**6
MAX_TREE_BYTES = 10**9
MAX_FILES = 50_000

IGNORED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".nox", ".ipynb_checkpoints"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store"}
)
"""Names that are left out where no .gitignore says it."""

_GIT_S = 30.0


@dataclass(frozen=True, slots=True)
class CodeDirectory:
    """A directory of this machine. What is below it has `prefix` before its name in the replica."""

    path: Path
    prefix: str = ""

    @staticmethod
    def of(path: Path) -> "CodeDirectory":
        """A Python package keeps its name, so that `python -m PACKAGE.MODULE` works. Raises InvalidArgument."""
        if not path.is_dir():
            raise InvalidArgument(f"--package-path {path} is not a directory. `jobs dev` synchronises a directory.")
        resolved = path.resolve()
        if resolved in (Path(resolved.anchor), Path.home().resolve()):
            raise InvalidArgument(
                f"{resolved} has more than one program. Name the directory of the program with --package-path."
            )
        return CodeDirectory(resolved, f"{resolved.name}/" if (resolved / "__init__.py").is_file() else "")

    @property
    def project(self) -> Path:
        """The directory whose requirements count."""
        return self.path.parent if self.prefix else self.path


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file as it is on disk, or a symbolic link to `link`."""

    path: Path
    size: int = 0
    mtime_ns: int = 0
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True, slots=True)
class CodeTree:
    """The files by their names in the replica, and sentences about what is left out."""

    files: Mapping[str, CodeFile]
    notices: tuple[str, ...] = ()


def scan(directory: CodeDirectory) -> CodeTree:
    """The files of the directory now. Raises InvalidArgument for more, or larger ones, than are synchronised."""
    if not directory.path.is_dir():
        raise InvalidArgument(f"{directory.path} is not there any more; nothing is removed in the replica.")
    files: dict[str, CodeFile] = {}
    notices: list[str] = []
    total = 0
    for name in _names(directory.path, notices):
        path = directory.path / name
        try:
            status = path.lstat()
            link = str(path.readlink()) if stat.S_ISLNK(status.st_mode) else ""
        except OSError:  # in git's index alone, or removed in between
            continue
        if link:
            if _leads_out(path, link, directory.path):
                notices.append(
                    f"{shown(name)} is not synchronised: it is a link to {shown(link)}, out of {directory.path}."
                )
                continue
            file = CodeFile(path, link=link)
        elif stat.S_ISREG(status.st_mode):
            mode = 0o755 if status.st_mode & 0o100 else 0o644
            file = CodeFile(path, status.st_size, status.st_mtime_ns, mode)
        else:
            continue
        _check(name, file.size, MAX_FILE_BYTES, "a file")
        files[directory.prefix + name] = file
        total += file.size
        _check(str(directory.path), total, MAX_TREE_BYTES, "a directory")
        if len(files) > MAX_FILES:
            raise InvalidArgument(f"{directory.path} has more than {MAX_FILES} files. {_ADVICE}")
    return CodeTree(files, tuple(notices))


def content(file: CodeFile) -> bytes | None:
    """The content; None if it is not a file any more, or cannot be read."""
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError:  # removed, or not readable: the next scan sees what is there
        return None
    return data if len(data) <= MAX_FILE_BYTES else None


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_ADVICE = (
    "Only code is synchronised: list data and results in .gitignore, or keep them elsewhere "
    "(docs/how-to/data.md has data sets)."
)


def _check(name: str, size: int, most: int, what: str) -> None:
    if size > most:
        raise InvalidArgument(f"{shown(name)} has more than {sized(most)}, the most of {what}. {_ADVICE}")


def _leads_out(path: Path, link: str, root: Path) -> bool:
    """Whether a link leads out of the directory, or is absolute and so has another meaning elsewhere."""
    target = Path(os.path.normpath(path.parent / link))
    return Path(link).is_absolute() or not target.is_relative_to(root)


def _names(directory: Path, notices: list[str]) -> Iterator[str]:
    """The names below a directory: in a repository of git those that it does not ignore."""
    listed = _in_git(directory, notices)
    yield from _walked(directory, notices) if listed is None else listed


def _walked(directory: Path, notices: list[str]) -> Iterator[str]:
    def left_out(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # removed in between
            notices.append(f"{shown(str(error.filename))} is not synchronised: {error.strerror}.")

    for parent, directories, names in os.walk(directory, onerror=left_out):
        inside = Path(parent).relative_to(directory)
        links = [name for name in directories if Path(parent, name).is_symlink()]
        directories[:] = [name for name in directories if name not in IGNORED and name not in links]
        for name in sorted((*names, *links)):
            if name not in IGNORED:
                yield str(inside / name)


def _in_git(directory: Path, notices: list[str]) -> list[str] | None:
    """None where the directory is in no repository, or ignored by it as a whole. Repositories within it count as their
    own. Raises InvalidArgument where git cannot list the files: what it ignores must not be sent."""
    if not any((above / ".git").exists() for above in (directory, *directory.parents)):
        return None
    listed = _git(directory, "ls-files", "-co", "--exclude-standard", "-z")
    if listed.returncode:
        reason = os.fsdecode(listed.stderr).strip().partition("\n")[0]
        raise InvalidArgument(f"git does not list the files of {directory}, so that .gitignore is not known: {reason}")
    if not listed.stdout and _git(directory, "check-ignore", "-q", ".").returncode == 0:
        return None
    names: list[str] = []
    for name in dict.fromkeys(map(os.fsdecode, listed.stdout.split(b"\0"))):
        inner = directory / name
        if inner == directory:
            continue
        if inner.is_dir() and not inner.is_symlink():
            names += [f"{name.rstrip('/')}/{below}" for below in _names(inner, notices)]
        else:
            names.append(name)
    return names


def _git(directory: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    """Run git, which runs nothing that the repository configures. Raises InvalidArgument."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ("git", "-c", "core.fsmonitor=false", "-C", str(directory), *words)
    try:
        return subprocess.run(command, env=environment, capture_output=True, timeout=_GIT_S, check=False)
    except OSError as error:
        raise InvalidArgument(
            f"{directory} is in a repository of git, which is not here to read .gitignore: {error.strerror}."
        ) from error
    except subprocess.TimeoutExpired as error:
        raise InvalidArgument(f"git takes longer than {_GIT_S:.0f} s to list the files of {directory}.") from error
