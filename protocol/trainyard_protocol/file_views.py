"""The files of a job, as the server tells of them."""

from datetime import datetime
from typing import Literal

from trainyard_protocol.sync import Wire

Kind = Literal["file", "directory", "other"]


class FileEntry(Wire):
    """Something in a directory. `size` (bytes) and `updated` are a file's; what is `other` cannot be downloaded: a
    device, a link that leads out of the job-dir, a name that is no text."""

    name: str
    kind: Kind
    size: int | None = None
    updated: datetime | None = None


class FileListing(Wire):
    """One directory below a job's job-dir, in the order of the names, as far as one page goes.

    `next_page_token` asks for the rest; "": that is all. `model`, on the listing of the job-dir itself, is where the
    model is, as its program has said, or as `JOBDIR/model` is there; "": nobody knows of one.
    """

    job_dir: str
    path: str
    entries: tuple[FileEntry, ...] = ()
    next_page_token: str = ""
    model: str = ""
