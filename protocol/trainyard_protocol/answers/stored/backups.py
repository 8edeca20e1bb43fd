"""Backups: the manifest at the end of an archive, and what the examination of stored data has found."""

from datetime import datetime
from typing import Literal

from trainyard_protocol.message import Wire

FORMAT = 1
"""The newest format of archives that this program writes and reads."""

MANIFEST = "manifest.json"
"""The last member of an archive. One without it was cut off."""

SERVER_PART, STORAGE_PART, STATE_PART = "server", "gcs", "state"
"""The directories in an archive: the server's data directory, the storage behind gs://, and single files: tokens,
options and quotas."""


RESTORED_MARK = "restored.json"
"""The file in a restored data directory of a server that has not taken the directory over yet: a RestoredMark."""


class RestoredMark(Wire):
    """The moment that a restored database is of. `is_noted`: the database says of each agent that it is of then."""

    of: datetime
    is_noted: bool = False


class ArchivedFile(Wire):
    """A file of an archive."""

    path: str
    size: int
    sha256: str


class BackupManifest(Wire):
    """The contents of an archive. `time` is the moment before which nothing acknowledged is missing; `version` and
    `schema_revision` are of the server that made it, `counts` the rows of some tables in it."""

    format: int
    version: str
    time: datetime
    database: Literal["sqlite", "postgresql"]
    schema_revision: str
    counts: dict[str, int]
    files: tuple[ArchivedFile, ...]


class Examined(Wire):
    """The result of one kind of examination: how many of what were examined, and a line for each fault."""

    what: str
    count: int
    faults: tuple[str, ...] = ()


class ExaminationView(Wire):
    """The result of the examination of all stored data."""

    examined: tuple[Examined, ...]
