"""The files of a directory that `jobs dev` synchronises: which there are, and their content."""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainyard_programs.files import EXPECTED, ProgramFile, list_files
from trainyard_protocol.errors import InvalidArgument, shown
from trainyard_protocol.fields import sized

MAX_FILE_BYTES = 100 * 10**6
MAX_TREE_BYTES = 10**9
MAX_FILES = 50_000


@dataclass(frozen=True, slots=True)
class CodeDirectory:
    """A directory of this machine. What is below it has `prefix` before its name in the replica. What is to `include`
    is sent though a rule leaves it out."""

    path: Path
    prefix: str = ""
    include: tuple[Path, ...] = ()

    @staticmethod
    def of(path: Path, include: tuple[Path, ...] = ()) -> "CodeDirectory":
        """A Python package keeps its name, so that `python -m PACKAGE.MODULE` works. Raises InvalidArgument."""
        if not path.is_dir():
            raise InvalidArgument(f"--package-path {path} is not a directory. `jobs dev` synchronises a directory.")
        resolved = path.resolve()
        if resolved in (Path(resolved.anchor), Path.home().resolve()):
            raise InvalidArgument(
                f"{resolved} has more than one program. Name the directory of the program with --package-path."
            )
        prefix = f"{resolved.name}/" if (resolved / "__init__.py").is_file() else ""
        return CodeDirectory(resolved, prefix, include)

    @property
    def project(self) -> Path:
        """The directory whose requirements count."""
        return self.path.parent if self.prefix else self.path


@dataclass(frozen=True, slots=True)
class CodeTree:
    """The files by their names in the replica, and sentences about what is left out."""

    files: Mapping[str, ProgramFile]
    notices: tuple[str, ...] = ()


def scan(directory: CodeDirectory) -> CodeTree:
    """The files of the directory now. Raises InvalidArgument for more, or larger ones, than are synchronised."""
    if not directory.path.is_dir():
        raise InvalidArgument(f"{directory.path} no longer exists; nothing is removed in the replica.")
    listing = list_files(directory.path, include=directory.include, most_bytes=MAX_TREE_BYTES, most_files=MAX_FILES)
    for name, file in listing.files.items():
        if file.size > MAX_FILE_BYTES:
            raise InvalidArgument(f"{shown(name)} has more than {sized(MAX_FILE_BYTES)}, the most of a file. {_ADVICE}")
    left_out = (entry for entry in listing.left_out if entry.reason not in EXPECTED)
    notices = [f"{entry.name} is not synchronised: {entry.reason}." for entry in left_out]
    notices += [
        f"{shown(name)} is a link to outside {directory.path}; its target is synchronised." for name in listing.followed
    ]
    return CodeTree({directory.prefix + name: file for name, file in listing.files.items()}, tuple(notices))


def content(file: ProgramFile) -> bytes | None:
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
