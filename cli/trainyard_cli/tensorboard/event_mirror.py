"""The event files of a job on gs://: copied, and kept up to date, for who reads files alone."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from trainyard_cli.submission.submit import Say

MARK = "tfevents"
"""What the name of every event file has in it."""

ROUND_S = 5.0

_TIMEOUT = (5.0, 60.0)  # to connect, to read
_GRACE_S = 2.0


class Mirror:
    """The event files below gs://BUCKET/DIRECTORY, as files below a directory here.

    A file that has grown gets the new bytes at its end and stays the same file, since TensorBoard keeps files open.
    """

    def __init__(self, url: str, directory: Path, storage: Any) -> None:
        self.url = url
        self._bucket, _, prefix = url.removeprefix("gs://").partition("/")
        self._prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
        self._directory = directory
        self._storage = storage

    def round(self, stop: threading.Event) -> int:
        """Copy what is new and return how many event files there are. Raises what the storage raises."""
        count = 0
        for blob in self._storage.list_blobs(
            self._bucket, prefix=self._prefix or None, timeout=_TIMEOUT, retry=None
        ):
            path = PurePosixPath(blob.name.removeprefix(self._prefix))
            if stop.is_set():
                break
            if MARK in path.name and not path.is_absolute() and ".." not in path.parts:
                self._copy(blob.name, blob.size, self._directory / path)
                count += 1
        return count

    def _copy(self, name: str, size: int, path: Path) -> None:
        from google.api_core.exceptions import NotFound

        have = path.stat().st_size if path.exists() else 0
        if size == have:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(".draft")
        start = have if have < size else 0
        part = {"start": start, "end": size - 1} if start else {}
        # Not the blob of the list: that one is of one generation, which may be gone by now.
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
def followed(mirror: Mirror, say: Say) -> Iterator[None]:
    """Meanwhile, a thread does round after round."""
    stop = threading.Event()
    thread = threading.Thread(target=follow, args=(mirror, stop, say), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_GRACE_S)


def follow(mirror: Mirror, stop: threading.Event, say: Say, pause_s: float = ROUND_S) -> None:
    """Round after round until `stop`. What goes wrong is said once, until a round goes well again."""
    away = told = False
    while not stop.is_set():
        try:
            count = mirror.round(stop)
            if not count and not told:
                say(none_yet(mirror.url))
            away, told = False, True
        except Exception as error:  # noqa: BLE001  whatever it was, the next round may go well
            if not away and not stop.is_set():
                say(f"WARNING: the event files of {mirror.url} cannot be read: {error}. Trying again...")
            away = True
        stop.wait(pause_s)


def none_yet(where: str) -> str:
    return f"There are no event files in {where} yet; what the job writes will appear."
