"""Answers about the files of a job, and about an uploaded package."""

from datetime import datetime
from typing import Literal

from trainyard_protocol.message import Wire


class Staged(Wire):
    """An uploaded package: `uri` goes into packageUris."""

    uri: str
    sha256: str
    size: int


class FileEntry(Wire):
    """An entry of a directory. `size` is in bytes. A device, a link out of the job-dir or a name that is not text is
    `other`, and cannot be downloaded. `is_link`: it is a link to a file or directory elsewhere in the job-dir."""

    name: str
    kind: Literal["file", "directory", "other"]
    size: int | None = None
    updated: datetime | None = None
    is_link: bool = False


class FileListing(Wire):
    """One page of a directory below a job's job-dir, sorted by name.

    `next_page_token` is "" on the last page. `model`, only in the listing of the job-dir itself, is the location of the
    model as its program reported it, or `JOBDIR/model` if that exists.
    """

    job_dir: str
    path: str
    entries: tuple[FileEntry, ...] = ()
    next_page_token: str = ""
    model: str = ""
