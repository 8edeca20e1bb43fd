"""Folders on a file system or in a bucket (gs://), with one interface.

Names are relative, with `/` as the separator. Writes are atomic. Requests to a bucket are repeated for RETRY_FOR
seconds after errors that may pass: no connection, timeouts, 429 and 5xx.
"""

import contextlib
import functools
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from trainyard_trainer.errors import TrainerError, TrainerUsageError

if TYPE_CHECKING:
    from google.cloud import storage

log = logging.getLogger("trainer")

BUCKET_THREADS = 8  # requests in flight for a batch
STREAM_BYTES = 4 * 2**20  # of one request of a stream
RETRY_FOR = 600.0  # seconds; the library's default is 120
_PASSING_STATUS = (408, 429, 500, 502, 503, 504)


class StorageError(TrainerError):
    """A disk or a bucket refused a request, or a bucket did not respond for RETRY_FOR seconds."""


class Folder(Protocol):
    """The interface of both implementations."""

    url: str
    """The argument of `open_folder`."""

    def read(self, name: str) -> bytes | None:
        """The file's content; None if there is no such file."""

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file, with its parent folders."""

    def download(self, name: str, path: Path) -> bool:
        """Copy a file to a local path without holding it in memory; False if there is no such file."""

    def upload(self, name: str, path: Path) -> None:
        """Like `write`, from a local file, without holding it in memory."""

    def stored(self, name: str) -> "StoredFile | None":
        """A file, to be read in parts; None if there is no such file."""

    def children(self, prefix: str = "") -> list[str]:
        """Sorted names of the direct children that start with the prefix."""

    def walk(self) -> Iterator[str]:
        """Names of all files, also in subfolders, in no order."""

    def remove(self, name: str) -> None:
        """Remove a file or a folder with its content, if it exists. Several processes may remove the same."""

    def folder(self, name: str) -> "Folder":
        """A subfolder, which need not exist."""


class StoredFile(Protocol):
    """A file that is read in parts. Thread-safe."""

    size: int

    def open(self) -> BinaryIO:
        """A stream of the content from its start, which can skip forward."""

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length)."""


def open_folder(url: str, retry_for: float | None = None) -> Folder:
    """The folder at a path or at gs://bucket/prefix; nothing is created until something is written.

    Args:
        retry_for: seconds in place of RETRY_FOR.
    """
    if not url.startswith("gs://"):
        return PathFolder(Path(url).absolute())
    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    if not bucket:
        raise TrainerUsageError(f"{url} does not name a bucket: gs://BUCKET/DIRECTORY.")
    return open_bucket(bucket, prefix.strip("/"), retry_for)


def read_file(url: str) -> bytes | None:
    """The content of a file on a path or at gs://...; None if there is no such file."""
    folder, _, name = url.rpartition("/")
    return open_folder(folder or ("/" if url.startswith("/") else ".")).read(name)


def open_bucket(name: str, prefix: str = "", retry_for: float | None = None) -> "BucketFolder":
    """A bucket of Google Cloud Storage, or of the emulator at STORAGE_EMULATOR_HOST."""
    return BucketFolder(_client(os.environ.get("STORAGE_EMULATOR_HOST")).bucket(name), prefix, retry_for)


@contextlib.contextmanager
def path_errors(path: Path) -> Iterator[None]:
    """Raise StorageError for the errors of a file system."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror or error}. When that is mended, the same command continues from the last "
            "checkpoint."
        ) from error


class PathFolder:
    """On a file system. A file is written under a temporary name and then renamed, which is atomic."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = str(path)

    def read(self, name: str) -> bytes | None:
        path = self._path / name
        with path_errors(path):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with self._replaced(name) as partial, partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename, for a crash of the machine

    def download(self, name: str, path: Path) -> bool:
        try:
            shutil.copyfile(self._path / name, path)
        except FileNotFoundError:
            return False
        return True

    def upload(self, name: str, path: Path) -> None:
        with self._replaced(name) as partial:
            shutil.copyfile(path, partial)

    def stored(self, name: str) -> StoredFile | None:
        path = self._path / name
        return StoredPath(path) if path.is_file() else None

    def children(self, prefix: str = "") -> list[str]:
        if not self._path.is_dir():
            return []
        return sorted(path.name for path in self._path.iterdir() if path.name.startswith(prefix))

    def walk(self) -> Iterator[str]:
        for folder, _, files in os.walk(self._path, followlinks=True):
            below = Path(folder).relative_to(self._path)
            yield from ((below / file).as_posix() for file in files)

    def remove(self, name: str) -> None:
        path = self._path / name
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        while path.is_dir():
            # Another process may be removing it concurrently.
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)

    def folder(self, name: str) -> Folder:
        return PathFolder(self._path / name)

    @contextlib.contextmanager
    def _replaced(self, name: str) -> Iterator[Path]:
        path = self._path / name
        partial = path.with_name(f"{path.name}.partial")
        with path_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield partial
                partial.replace(path)
            except OSError:
                partial.unlink(missing_ok=True)  # it may have filled the disk
                raise


class BucketFolder:
    """In a bucket of Google Cloud Storage; uploads are atomic."""

    def __init__(self, bucket: "storage.Bucket", prefix: str, retry_for: float | None = None) -> None:
        self._bucket = bucket
        self._retry_for = retry_for
        self._prefix = f"{prefix}/" if prefix else ""
        self.url = f"gs://{bucket.name}/{prefix}".rstrip("/")

    def read(self, name: str) -> bytes | None:
        from google.api_core.exceptions import NotFound

        with self.errors(name):
            try:
                content: bytes = self._blob(name).download_as_bytes(retry=self._retry())
            except NotFound:
                return None
            return content

    def write(self, name: str, data: bytes) -> None:
        with self.errors(name):
            self._blob(name).upload_from_string(data, content_type="application/octet-stream", retry=self._retry())

    def read_version(self, name: str) -> tuple[bytes, int]:
        """The file's content and generation; empty and 0 if there is no such file."""
        from google.api_core.exceptions import NotFound, PreconditionFailed

        with self.errors(name):
            while True:
                blob = self._bucket.get_blob(self._prefix + name, retry=self._retry())
                if blob is None:
                    return b"", 0
                generation: int = blob.generation
                # Replaced or removed between the two requests: read it again.
                with contextlib.suppress(NotFound, PreconditionFailed):
                    return blob.download_as_bytes(if_generation_match=generation, retry=self._retry()), generation

    def write_version(self, name: str, data: bytes, generation: int) -> bool:
        """Like `write`, if the file is of this generation; 0: if there is none. Returns whether it was."""
        from google.api_core.exceptions import PreconditionFailed

        with self.errors(name):
            try:
                self._blob(name).upload_from_string(data, if_generation_match=generation, retry=self._retry())
            except PreconditionFailed:
                return False
            return True

    def download(self, name: str, path: Path) -> bool:
        from google.api_core.exceptions import NotFound

        with self.errors(name):
            try:
                self._blob(name).download_to_filename(str(path), retry=self._retry())
            except NotFound:
                return False
            return True

    def upload(self, name: str, path: Path) -> None:
        with self.errors(name):
            self._blob(name).upload_from_filename(
                str(path), content_type="application/octet-stream", retry=self._retry()
            )

    def stored(self, name: str) -> StoredFile | None:
        with self.errors(name):
            blob = self._bucket.get_blob(self._prefix + name, retry=self._retry())
        return StoredObject(self, blob) if blob is not None else None

    def children(self, prefix: str = "") -> list[str]:
        return sorted({name.split("/")[0] for name in self.names(prefix)})

    def walk(self) -> Iterator[str]:
        return self.names("")

    def names(self, prefix: str, *, below: bool = True) -> Iterator[str]:
        """Names of the files that start with the prefix; without `below` none with a further `/`."""
        delimiter = None if below else "/"
        with self.errors(prefix):
            for blob in self._bucket.list_blobs(prefix=self._prefix + prefix, delimiter=delimiter, retry=self._retry()):
                yield blob.name.removeprefix(self._prefix)

    def remove(self, name: str) -> None:
        from google.api_core.exceptions import NotFound

        for blob_name in self.names(name):
            if blob_name == name or blob_name.startswith(f"{name}/"):
                # It may have been removed by another process.
                with self.errors(name), contextlib.suppress(NotFound):
                    self._blob(blob_name).delete(retry=self._retry())

    def folder(self, name: str) -> Folder:
        return BucketFolder(self._bucket, self._prefix + name, self._retry_for)

    def _retry(self) -> Any:
        return _retry(self._retry_for)

    def _blob(self, name: str) -> "storage.Blob":
        return self._bucket.blob(self._prefix + name)

    @contextlib.contextmanager
    def errors(self, name: str) -> Iterator[None]:
        """Raise StorageError for the library's errors other than 404."""
        from google.api_core.exceptions import GoogleAPIError, NotFound, RetryError
        from requests import RequestException

        try:
            yield
        except NotFound:
            raise
        except RetryError as error:
            raise StorageError(
                f"{self.url}/{name}: no response for {self._retry_for or RETRY_FOR:.0f} s ({error.cause}). When the "
                "bucket is back, the same command continues from the last checkpoint."
            ) from error
        except (GoogleAPIError, RequestException) as error:
            raise StorageError(f"{self.url}/{name}: {error}") from error


class StoredPath:
    """On a file system; not kept open, as there may be thousands."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.size = path.stat().st_size

    def open(self) -> BinaryIO:
        return self._path.open("rb", buffering=4096)  # small, as the content is skipped

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self._path.open("rb", buffering=0) as file:
            return [os.pread(file.fileno(), length, offset) for offset, length in ranges]


class StoredObject:
    """In a bucket, read by requests for ranges: nothing is kept, in memory or on a disk."""

    def __init__(self, folder: BucketFolder, blob: "storage.Blob") -> None:
        self._folder, self._blob = folder, blob
        self.size: int = blob.size

    def open(self) -> BinaryIO:
        stream: BinaryIO = self._blob.open("rb", chunk_size=STREAM_BYTES, retry=_retry())
        return stream

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        if len(ranges) == 1:
            return [self._range(ranges[0])]
        with ThreadPoolExecutor(max(1, min(len(ranges), BUCKET_THREADS))) as threads:
            return list(threads.map(self._range, ranges))

    def _range(self, wanted: tuple[int, int]) -> bytes:
        offset, length = wanted
        with self._folder.errors(self._blob.name):
            content: bytes = self._blob.download_as_bytes(
                start=offset, end=offset + length - 1, checksum=None, retry=_retry()
            )
            return content


@functools.cache
def _client(_emulator: str | None) -> "storage.Client":
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import storage  # optional: needed for gs:// only

    try:
        return storage.Client()
    except GoogleAuthError as error:
        raise StorageError(f"gs:// needs credentials, or STORAGE_EMULATOR_HOST: {error}") from error


def _retry(retry_for: float | None = None) -> Any:
    from google.api_core.retry import Retry

    seconds = retry_for or RETRY_FOR
    return Retry(_may_pass, initial=1, maximum=15, timeout=seconds, on_error=_LogOnce(seconds))


def _may_pass(error: Exception) -> bool:
    import requests
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError
    from google.cloud.storage.exceptions import InvalidResponse

    if isinstance(error, InvalidResponse):  # of uploads and downloads
        return error.response.status_code in _PASSING_STATUS
    if isinstance(error, GoogleAPICallError):
        return error.code in _PASSING_STATUS
    kinds = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    return isinstance(error, (ConnectionError, TransportError, *kinds))


class _LogOnce:
    """Logs the first of a request's errors that is followed by a retry."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._logged = False

    def __call__(self, error: Exception) -> None:
        if not self._logged:
            self._logged = True
            log.warning("The bucket does not respond; retrying for up to %.0f s. (%s)", self._seconds, error)
