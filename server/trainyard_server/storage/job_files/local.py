"""Job-dirs on the server's file system, below the directories that its operator allowed.

A job writes to its job-dir and may create a link there at any time. So a path is resolved first, must then be in the
job-dir, and is opened name by name from the allowed directory down without following links.
"""

import errno
import heapq
import io
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from trainyard_protocol.answers.files import FileEntry
from trainyard_protocol.errors import FailedPrecondition, NotFound, PermissionDenied, TrainyardError
from trainyard_server.storage.job_files.tree import PAGE_SIZE, Content, FilePage, cut, key

_BLOCK = 2**20


class LocalTree:
    def __init__(self, job_dir: str, roots: Sequence[Path]) -> None:
        """Raises FailedPrecondition for a job-dir that does not exist here or is not allowed."""
        if not Path(job_dir).is_absolute():
            raise FailedPrecondition(
                f"The job-dir {job_dir} is neither a gs:// address nor an absolute path, so it cannot be read."
            )
        missing = FailedPrecondition(
            f"There is no {job_dir} on the server's machine. It may not have been created yet, or be on the "
            "agent's machine only."
        )
        try:
            self._base = Path(job_dir).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise missing from error
        allowed = [root.resolve() for root in roots]
        root = next((root for root in allowed if self._base.is_relative_to(root)), None)
        if root is None:  # whether it exists or not: that is nobody else's to know
            raise FailedPrecondition(
                f"The job-dir {job_dir} is below no directory that this server may show for its owner "
                "(--job-dir-root of the server, and there PROJECT/OWNER)."
            )
        try:
            self._base.stat()
        except OSError as error:
            raise missing from error
        self._root = root

    def page(self, path: tuple[str, ...], after: str) -> FilePage:
        target = self._resolved(path)
        if not target.is_dir():
            raise FailedPrecondition(f"{_shown(path)} is not a directory.")
        with _Handle(self._opened(target, path)) as directory, os.scandir(directory) as entries:
            keyed = (
                (key(_text(entry.name), is_directory=entry.is_dir(follow_symlinks=False)), entry) for entry in entries
            )
            later = (item for item in keyed if item[0] > after)
            chosen = heapq.nsmallest(PAGE_SIZE + 1, later, key=lambda item: item[0])
            return cut((name, self._entry(target, entry)) for name, entry in chosen)

    def entry(self, path: tuple[str, ...]) -> FileEntry:
        handle = self._opened(self._resolved(path), path)
        try:
            return _described(path[-1] if path else "", os.fstat(handle))
        finally:
            os.close(handle)

    def walk(self, path: tuple[str, ...]) -> Generator[tuple[tuple[str, ...], FileEntry], None, None]:
        if self.entry(path).kind != "directory":
            raise FailedPrecondition(f"{_shown(path)} is not a directory.")
        waiting = [path]
        while waiting:
            parent = waiting.pop()
            try:
                target = self._resolved(parent)
                handle = self._opened(target, parent)
            except TrainyardError:  # removed or replaced meanwhile, or not readable
                continue
            with _Handle(handle) as directory, os.scandir(directory) as entries:
                for item in entries:
                    entry = self._entry(target, item)
                    yield (*parent, entry.name), entry
                    if entry.kind == "directory" and not entry.is_link:
                        waiting.append((*parent, entry.name))

    def content(self, path: tuple[str, ...]) -> Content:
        handle = self._opened(self._resolved(path), path)
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            os.close(handle)
            raise FailedPrecondition(f"{_shown(path)} is a directory: only files can be downloaded.")
        return Content(path[-1], status.st_size, _blocks(os.fdopen(handle, "rb"), status.st_size))

    def read(self, path: tuple[str, ...], offset: int, length: int) -> bytes:
        with os.fdopen(self._opened(self._resolved(path), path), "rb") as file:
            file.seek(offset)
            return file.read(length)

    def has_directory(self, name: str) -> bool:
        try:
            return self._resolved((name,)).is_dir()
        except TrainyardError:
            return False

    def _resolved(self, path: tuple[str, ...]) -> Path:
        """Raises NotFound, and PermissionDenied for a link out of the job-dir."""
        try:
            target = self._base.joinpath(*path).resolve(strict=True)
        except (FileNotFoundError, NotADirectoryError, RuntimeError, ValueError) as error:
            raise NotFound(f"There is no {_shown(path)} in the job-dir.") from error
        except OSError as error:
            raise _refused(path, error) from error
        if not target.is_relative_to(self._base):
            raise PermissionDenied(f"{_shown(path)} is a link to outside the job-dir.")
        return target

    def _opened(self, target: Path, path: tuple[str, ...]) -> int:
        """A descriptor of the resolved file or directory, even if its name is replaced meanwhile."""
        handle = os.open(self._root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in target.relative_to(self._root).parts:
                inner = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
                os.close(handle)
                handle = inner
            mode = os.fstat(handle).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise FailedPrecondition(f"{_shown(path)} is neither a file nor a directory.")
            # An O_PATH descriptor cannot be read; this opens the same file for reading.
            return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"There is no {_shown(path)} in the job-dir.") from error
        except OSError as error:
            raise _refused(path, error) from error
        finally:
            os.close(handle)

    def _entry(self, directory: Path, entry: "os.DirEntry[str]") -> FileEntry:
        name = os.fsencode(entry.name).decode(errors="replace")
        try:
            status = entry.stat(follow_symlinks=False)
            is_link = stat.S_ISLNK(status.st_mode)
            if is_link:
                target = (directory / entry.name).resolve(strict=True)
                if not target.is_relative_to(self._base):
                    return FileEntry(name=name, kind="other")
                status = target.stat()
        except (OSError, RuntimeError):  # removed meanwhile, or a broken link
            return FileEntry(name=name, kind="other")
        described = _described(name, status)
        kind = described.kind if name == entry.name else "other"
        return described.model_copy(update={"kind": kind, "is_link": is_link})


class _Handle:
    """A context manager that closes a descriptor."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        return self._handle

    def __exit__(self, *_: object) -> None:
        os.close(self._handle)


def _blocks(file: io.BufferedReader, size: int) -> Iterator[bytes]:
    with file:
        left = size
        while left:
            block = file.read(min(_BLOCK, left))
            if not block:
                raise OSError(errno.EIO, "the file became shorter during the download")
            left -= len(block)
            yield block


def _described(name: str, status: os.stat_result) -> FileEntry:
    updated = datetime.fromtimestamp(status.st_mtime, UTC)
    if stat.S_ISDIR(status.st_mode):
        return FileEntry(name=name, kind="directory", updated=updated)
    kind: Literal["file", "other"] = "file" if stat.S_ISREG(status.st_mode) else "other"
    return FileEntry(name=name, kind=kind, size=status.st_size, updated=updated)


def _text(name: str) -> str:
    """A unique printable text for a file name in bytes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _refused(path: tuple[str, ...], error: OSError) -> FailedPrecondition:
    return FailedPrecondition(f"{_shown(path)} cannot be read by the server: {error.strerror}.")


def _shown(path: tuple[str, ...]) -> str:
    return "/".join(path) or "The job-dir"
