"""Directories of a job-dir as zip archives, made while they are sent: nothing is kept on disk, one block in memory.

Files are stored, not compressed: weights and images hardly shrink, and a server has better uses for its CPU.
"""

import errno
import zipfile
from collections.abc import Iterator, Sequence

from trainyard_protocol.answers.files import FileEntry
from trainyard_protocol.errors import FailedPrecondition, NotFound, PermissionDenied, TrainyardError
from trainyard_server.storage.job_files.tree import Tree

LEFT_OUT = "LEFT-OUT.txt"
"""Name of the entry that lists what the archive does not have, if there is something."""

_BLOCK = 2**18
_FIRST_YEAR, _LAST_YEAR = 1980, 2107  # of times in a zip archive


class _Sink:
    """A file that cannot be read or sought: what was written waits until it is sent."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def write(self, data: bytes) -> int:
        self._waiting += data
        return len(data)

    def flush(self) -> None:
        """Called by zipfile; nothing is buffered elsewhere."""

    def close(self) -> None:
        """Part of zipfile's protocol; there is nothing to close."""

    def blocks(self, least: int) -> Iterator[bytes]:
        if len(self._waiting) >= least and self._waiting:
            yield bytes(self._waiting)
            self._waiting.clear()


def zip_blocks(
    tree: Tree, base: tuple[str, ...], entries: Sequence[tuple[tuple[str, ...], FileEntry]]
) -> Iterator[bytes]:
    """The archive of files below `base`. Links out of the job-dir, devices, names that other systems would read as
    something else, and files that are gone meanwhile are listed in `LEFT_OUT`. Raises OSError where the storage fails,
    so that the download ends early."""
    sink = _Sink()
    left_out: list[str] = []
    with zipfile.ZipFile(sink, "w") as archive:
        for path, entry in entries:
            if entry.kind == "directory" and not entry.is_link:
                continue
            name = "/".join(path[len(base) :])
            if entry.kind != "file" or not name.isprintable() or "\\" in name or name == LEFT_OUT:
                left_out.append(name)
                continue
            try:
                content = tree.content(path)
            except (NotFound, PermissionDenied, FailedPrecondition):
                left_out.append(name)
                continue
            except TrainyardError as error:
                raise OSError(errno.EIO, error.message) from error
            with archive.open(_info(name, entry), "w", force_zip64=True) as file:
                for block in content.blocks:
                    file.write(block)
                    yield from sink.blocks(_BLOCK)
        if left_out:
            text = "".join(f"{name!r}\n" for name in left_out)
            archive.writestr(LEFT_OUT, f"Not in this archive: links, devices, odd names, files that are gone.\n{text}")
    yield from sink.blocks(1)


def _info(name: str, entry: FileEntry) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    if entry.updated is not None and _FIRST_YEAR <= entry.updated.year <= _LAST_YEAR:
        info.date_time = entry.updated.timetuple()[:6]
    info.external_attr = 0o644 << 16
    return info
