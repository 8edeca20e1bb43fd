"""What the places have in common where the files of jobs are: paths, entries and contents."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.file_views import FileEntry

PAGE_SIZE = 200

_LONGEST = 1024
"""Of a name in a bucket, in bytes; no path of ours is longer."""


@dataclass(frozen=True, slots=True)
class Page:
    """Entries in their order. `more`: what comes after the last of them is asked for with that; "": nothing comes."""

    entries: tuple[FileEntry, ...]
    more: str = ""


@dataclass(frozen=True, slots=True)
class Content:
    """A file to be sent. `blocks` has exactly `size` bytes, or raises OSError where the file ends before them."""

    name: str
    size: int
    blocks: Iterator[bytes]


class Tree(Protocol):
    """A job-dir. All of it blocks, and raises TrainyardError with a sentence for a person."""

    def page(self, path: tuple[str, ...], after: str) -> Page:
        """A directory, from the first entry whose `key` is above `after`."""

    def content(self, path: tuple[str, ...]) -> Content: ...

    def has_directory(self, name: str) -> bool:
        """Whether the job-dir has that directory."""


def names(path: str) -> tuple[str, ...]:
    """The names along a path below the job-dir. Raises InvalidArgument for what could mean anything else."""
    parts = tuple(path.split("/")) if path else ()
    wrong = any(part in ("", ".", "..") or "\0" in part for part in parts)
    if wrong or len(path.encode(errors="replace")) > _LONGEST:
        raise InvalidArgument(
            Violation(
                "path", f"must be names joined by '/', below the job-dir and without '..'; this is {path!r}."
            )
        )
    return parts


def key(name: str, *, is_directory: bool) -> str:
    """What entries are sorted by: in buckets a directory is what comes before a '/'."""
    return f"{name}/" if is_directory else name


def cut(found: Iterable[tuple[str, FileEntry]]) -> Page:
    """One page of what was found, each with its key, sorted and at least one more than a page where there are."""
    entries = list(found)
    page = entries[:PAGE_SIZE]
    return Page(tuple(entry for _, entry in page), page[-1][0] if len(entries) > PAGE_SIZE else "")
