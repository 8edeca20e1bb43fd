"""Content-addressed store of uploaded packages: the same bytes are stored once and never change.

`<data_dir>/staging/<sha256>` has the bytes; the file name is only in the URI. The empty file
`<data_dir>/staging/projects/<project>/<sha256>` says that the project uploaded them: a digest alone gives nobody else's
package.
"""

import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from trainyard_protocol.answers.files import Staged
from trainyard_protocol.errors import InvalidArgument, NotFound, TooLarge, Violation
from trainyard_server.domain.access.permissions import Visible

SCHEME = "staging://"

_FILENAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_SUFFIXES = (".tar.gz", ".tgz", ".zip", ".whl")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PROJECTS = "projects"
_INCOMPLETE = ".upload-"
_COPIED = 1 << 20


class UploadStore:
    """The uploads in one directory, which it creates."""

    def __init__(self, directory: Path, limit: int) -> None:
        self._directory = directory
        self._limit = limit
        directory.mkdir(parents=True, exist_ok=True)
        for incomplete in directory.glob(f"{_INCOMPLETE}*"):  # of a server that was killed
            if incomplete.is_dir():
                shutil.rmtree(incomplete, ignore_errors=True)
            else:
                incomplete.unlink(missing_ok=True)

    def receive(self, project: str, filename: str) -> "Upload":
        """Start an upload for a project, whose name is valid. Raises InvalidArgument unless `filename` is a plain file
        name of a package."""
        if not _FILENAME.fullmatch(filename) or not filename.endswith(_SUFFIXES):
            raise InvalidArgument(
                Violation(
                    "filename",
                    f"{filename!r} is not a package's file name: letters, digits, '.', '_', '+' and '-', "
                    f"ending in one of {', '.join(_SUFFIXES)}.",
                )
            )
        return Upload(self._directory, self._directory / _PROJECTS / project, filename, self._limit)

    def add(self, project: str, path: Path) -> Staged:
        """Store a package that was made on this server. Raises TooLarge."""
        with self.receive(project, path.name) as upload, path.open("rb") as file:
            while block := file.read(_COPIED):
                upload.write(block)
            return upload.finish()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A directory beside the packages, which is removed afterwards."""
        directory = self._directory / f"{_INCOMPLETE}{secrets.token_hex(8)}"
        directory.mkdir(mode=0o700)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def body(self, directory: Path, filename: str) -> "ReceivedFile":
        """Start a file of a scratch directory, with the limit of a package."""
        return ReceivedFile(directory / filename, filename, self._limit)

    def path(self, sha256: str, filename: str) -> Path:
        """The file with the bytes. Raises NotFound."""
        if _DIGEST.fullmatch(sha256) and _FILENAME.fullmatch(filename):
            path = self._directory / sha256
            if path.is_file():
                return path
        raise NotFound(f"No package {filename} with the digest {sha256} was uploaded.")

    def has(self, visible: Visible, uri: str) -> bool:
        """Whether `staging://<sha256>/<filename>` was uploaded for a visible project."""
        sha256, _, filename = uri.removeprefix(SCHEME).partition("/")
        try:
            self.path(sha256, filename)
        except NotFound:
            return False
        projects = self._directory / _PROJECTS
        return visible is None or any((projects / name / sha256).is_file() for name in visible)

    def older_than(self, time: float) -> list[Path]:
        """The packages whose last upload was before `time` (seconds since the epoch)."""
        packages = (path for path in self._directory.iterdir() if _DIGEST.fullmatch(path.name))
        return sorted(path for path in packages if path.stat().st_mtime < time)


class ReceivedFile:
    """A file that is being received, as a context that closes it."""

    def __init__(self, path: Path, filename: str, limit: int) -> None:
        self._path = path
        self._filename = filename
        self._limit = limit
        self.size = 0
        self.unchecked = 0
        """Bytes since the receiver has last looked at the disk."""
        self._file = path.open("xb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()  # which may fail on a full disk

    def write(self, data: bytes) -> None:
        """Raises TooLarge as soon as the limit is exceeded."""
        self.size += len(data)
        self.unchecked += len(data)
        if self.size > self._limit:
            raise TooLarge(f"{self._filename} is larger than the limit of {self._limit} bytes.")
        self._file.write(data)


class Upload(ReceivedFile):
    """A package in progress. Leaving the context without `finish` discards it."""

    def __init__(self, directory: Path, project: Path, filename: str, limit: int) -> None:
        super().__init__(directory / f"{_INCOMPLETE}{secrets.token_hex(8)}", filename, limit)
        self._directory = directory
        self._project = project
        self._digest = hashlib.sha256()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._path.unlink(missing_ok=True)

    def write(self, data: bytes) -> None:
        super().write(data)
        self._digest.update(data)

    def finish(self) -> Staged:
        """Commit the upload durably. The same content is stored once, and the answer is the same each time."""
        if not self.size:
            raise InvalidArgument(f"{self._filename} is empty: the body of the request is the package.")
        self._file.flush()
        os.fsync(self._file.fileno())
        sha256 = self._digest.hexdigest()
        self._path.replace(self._directory / sha256)
        self._project.mkdir(parents=True, exist_ok=True)
        (self._project / sha256).touch()
        uri = f"{SCHEME}{sha256}/{self._filename}"
        return Staged(uri=uri, sha256=sha256, size=self.size)
