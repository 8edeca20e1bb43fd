"""Local copy of a job's event files on gs://, kept up to date for TensorBoard."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from trainyard_cli.submission.submit import Notify
from trainyard_protocol.net.gcs import directory_prefix, split_url

EVENT_FILE_INFIX = "tfevents"
"""Part of the name of every event file."""

POLL_S = 5.0

_TIMEOUT = (5.0, 60.0)  # to connect, to read
_GRACE_S = 2.0


class EventFileMirror:
    """Copies the event files below gs://BUCKET/DIRECTORY into a local directory.

    New bytes are appended to the same local file, because TensorBoard keeps files open.
    """

    def __init__(self, url: str, directory: Path, storage: Any) -> None:
        self.url = url
        self._bucket, name = split_url(url)
        self._prefix = directory_prefix(name)
        self._directory = directory
        self._storage = storage

    def poll(self, stop: threading.Event) -> int:
        """Copy new data and return the number of event files. Raises the storage's errors."""
        count = 0
        for blob in self._storage.list_blobs(self._bucket, prefix=self._prefix or None, timeout=_TIMEOUT, retry=None):
            path = PurePosixPath(blob.name.removeprefix(self._prefix))
            if stop.is_set():
                break
            if EVENT_FILE_INFIX in path.name and not path.is_absolute() and ".." not in path.parts:
                self._copy(blob.name, blob.size, self._directory / path)
                count += 1
        return count

    def _copy(self, name: str, size: int, path: Path) -> None:
        from google.api_core.exceptions import NotFound

        local_size = path.stat().st_size if path.exists() else 0
        if size == local_size:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(".draft")
        start = local_size if local_size < size else 0
        part = {"start": start, "end": size - 1} if start else {}
        # Not the listed blob: that is bound to a generation, which may be gone by now.
        blob = self._storage.bucket(self._bucket).blob(name)
        with suppress(NotFound):  # removed since it was listed
            blob.download_to_filename(str(draft), timeout=_TIMEOUT, retry=None, **part)
            if not start:
                draft.replace(path)
            elif draft.stat().st_size == size - start:
                with draft.open("rb") as new, path.open("ab") as file:
                    shutil.copyfileobj(new, file)
        draft.unlink(missing_ok=True)


@contextmanager
def followed(mirror: EventFileMirror, notify: Notify) -> Iterator[None]:
    """Poll in a thread for the duration of the context."""
    stop = threading.Event()
    thread = threading.Thread(target=follow, args=(mirror, stop, notify), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_GRACE_S)


def follow(mirror: EventFileMirror, stop: threading.Event, notify: Notify, pause_s: float = POLL_S) -> None:
    """Poll until `stop`. An error is reported once until a poll succeeds again."""
    failing = reported_empty = False
    while not stop.is_set():
        try:
            count = mirror.poll(stop)
            if not count and not reported_empty:
                notify(none_yet(mirror.url))
            failing, reported_empty = False, True
        except Exception as error:  # noqa: BLE001  any error may be transient
            if not failing and not stop.is_set():
                notify(f"WARNING: the event files of {mirror.url} cannot be read: {error}. Trying again...")
            failing = True
        stop.wait(pause_s)


def none_yet(location: str) -> str:
    return f"There are no event files in {location} yet. Curves appear when the job writes them."
