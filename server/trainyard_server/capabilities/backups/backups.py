"""Use case: an archive of all that the service stores, while it goes on."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from typing import Self

from trainyard_protocol.errors import FailedPrecondition, Unavailable
from trainyard_server.capabilities.backups import archive
from trainyard_server.capabilities.backups.collecting import Sources, collected
from trainyard_server.capabilities.backups.options import BackupOptions
from trainyard_server.context import Backend

QUOTAS = "quotas.yaml"


class OpenArchive:
    """An archive that is made as `blocks` are read. The caller closes it."""

    def __init__(self, time: datetime, blocks: Iterator[bytes], resources: ExitStack) -> None:
        self.time = time
        self.blocks = blocks
        self._resources = resources

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._resources.close()


class Backups:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def open(self) -> OpenArchive:
        """Bring all that is stored together, as it is at one moment. Raises Unavailable, FailedPrecondition where the
        database cannot be copied; OSError."""
        with ExitStack() as resources:
            try:
                collection = resources.enter_context(collected(self._sources(), self._backend.clock()))
            except sqlite3.Error as error:
                raise Unavailable(f"A database could not be copied: {error}. Try again.") from error
            return OpenArchive(collection.time, archive.blocks(collection), resources.pop_all())

    def _sources(self) -> Sources:
        settings = self._backend.settings
        options = settings.of(BackupOptions)
        if options.storage_dir is not None and not options.storage_dir.is_dir():
            raise FailedPrecondition(
                f"--backup-storage {options.storage_dir} is no directory: it is the directory of the storage behind gs://."
            )
        files = {path.name: path for path in options.files}
        if settings.quotas is not None:
            files[QUOTAS] = settings.quotas
        return Sources(settings.data_dir, self._backend.store, options.storage_dir, files)
