"""Interface of the storages of job files: paths, pages and contents."""

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from trainyard_protocol.answers.files import FileEntry
from trainyard_protocol.errors import InvalidArgument, Violation

PAGE_SIZE = 200

_MAX_LENGTH = 1024
"""The longest path, in bytes: the limit of object names in a bucket."""


@dataclass(frozen=True, slots=True)
class FilePage:
    """Sorted entries. `more` is the token of the next page; "" on the last page."""

    entries: tuple[FileEntry, ...]
    more: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a file. `blocks` yields exactly `size` bytes, or raises OSError if the file is shorter."""

    name: str
    size: int
    blocks: Iterator[bytes]


class Tree(Protocol):
    """A job-dir. All methods block and raise TrainyardError."""

    def page(self, path: tuple[str, ...], after: str) -> FilePage:
        """One page of a directory: the entries whose `key` is greater than `after`."""

    def entry(self, path: tuple[str, ...]) -> FileEntry:
        """The file or directory at a path. Raises NotFound."""

    def walk(self, path: tuple[str, ...]) -> Generator[tuple[tuple[str, ...], FileEntry], None, None]:
        """Everything below a directory, with its path. Links are not followed: those to files have the files' sizes."""

    def content(self, path: tuple[str, ...]) -> Content: ...

    def read(self, path: tuple[str, ...], offset: int, length: int) -> bytes:
        """At most `length` bytes of a file, from an offset that lies in it."""

    def has_directory(self, name: str) -> bool:
        """Whether the job-dir contains that directory."""


def names(path: str) -> tuple[str, ...]:
    """Split a path relative to the job-dir. Raises InvalidArgument for absolute paths, `..` and the like."""
    parts = tuple(path.split("/")) if path else ()
    if not all(map(is_name, parts)) or len(path.encode(errors="replace")) > _MAX_LENGTH:
        raise InvalidArgument(
            Violation("path", f"must be names joined by '/', below the job-dir and without '..'; this is {path!r}.")
        )
    return parts


def is_name(part: str) -> bool:
    """Whether a part of a path names something inside its directory."""
    return part not in ("", ".", "..") and "\0" not in part and "/" not in part


def key(name: str, *, is_directory: bool) -> str:
    """The sort key of an entry: in buckets, a directory is a prefix that ends with '/'."""
    return f"{name}/" if is_directory else name


def cut(keyed: Iterable[tuple[str, FileEntry]]) -> FilePage:
    """The first page of sorted entries with their keys, which include the next entry if there is one."""
    entries = list(keyed)
    page = entries[:PAGE_SIZE]
    return FilePage(tuple(entry for _, entry in page), page[-1][0] if len(entries) > PAGE_SIZE else "")
