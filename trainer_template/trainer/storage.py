"""Folders on a file system or in a bucket (gs://), with one interface.

Names are relative, with `/` as the separator. Writes are atomic.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from google.cloud import storage


class Folder(Protocol):
    """The interface of both implementations."""

    url: str
    """The argument of `open_folder`."""

    def read(self, name: str) -> bytes | None:
        """The file's content; None if there is no such file."""

    def write(self, name: str, data: bytes) -> None:
        """Create or replace a file, with its parent folders."""

    def children(self, prefix: str = "") -> list[str]:
        """Sorted names of the direct children that start with the prefix."""

    def remove(self, name: str) -> None:
        """Remove a file or a folder with its content, if it exists. Several processes may remove the same."""

    def folder(self, name: str) -> "Folder":
        """A subfolder, which need not exist."""


def open_folder(url: str) -> Folder:
    """The folder at a path or at gs://bucket/prefix; nothing is created until something is written."""
    if not url.startswith("gs://"):
        return PathFolder(Path(url).absolute())
    from google.cloud import storage  # optional: needed for gs:// only

    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    if not bucket:
        raise ValueError(f"{url} does not name a bucket: gs://BUCKET/DIRECTORY.")
    return BucketFolder(storage.Client().bucket(bucket), prefix.strip("/"))


class PathFolder:
    """On a file system. A file is written under a temporary name and then renamed, which is atomic."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.url = str(path)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.partial")
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # before the rename, for a crash of the machine
        partial.replace(path)

    def children(self, prefix: str = "") -> list[str]:
        if not self._path.is_dir():
            return []
        return sorted(path.name for path in self._path.iterdir() if path.name.startswith(prefix))

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


class BucketFolder:
    """In a bucket of Google Cloud Storage or of the emulator at STORAGE_EMULATOR_HOST; uploads are atomic."""

    def __init__(self, bucket: "storage.Bucket", prefix: str) -> None:
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self.url = f"gs://{bucket.name}/{prefix}".rstrip("/")

    def read(self, name: str) -> bytes | None:
        from google.api_core.exceptions import NotFound

        try:
            content: bytes = self._bucket.blob(self._prefix + name).download_as_bytes()
        except NotFound:
            return None
        return content

    def write(self, name: str, data: bytes) -> None:
        self._bucket.blob(self._prefix + name).upload_from_string(
            data, content_type="application/octet-stream"
        )

    def children(self, prefix: str = "") -> list[str]:
        blobs = self._bucket.list_blobs(prefix=self._prefix + prefix)
        return sorted({blob.name.removeprefix(self._prefix).split("/")[0] for blob in blobs})

    def remove(self, name: str) -> None:
        from google.api_core.exceptions import NotFound

        whole = self._prefix + name
        for blob in self._bucket.list_blobs(prefix=whole):
            if blob.name == whole or blob.name.startswith(f"{whole}/"):
                with contextlib.suppress(NotFound):  # removed by another process
                    blob.delete()

    def folder(self, name: str) -> Folder:
        return BucketFolder(self._bucket, self._prefix + name)
