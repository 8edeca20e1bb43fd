"""Job-dirs in Google Cloud Storage. Requests are not retried, since a person waits for the answer."""

import errno
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Literal

from trainyard_protocol.answers.files import FileEntry
from trainyard_protocol.errors import NotFound
from trainyard_protocol.net.gcs import SCHEME, CloudStorage, NoSuchObject, directory_prefix, split_url
from trainyard_server.storage.job_files.tree import PAGE_SIZE, Content, FilePage, cut, is_name, key

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

_TIMEOUT_S = 8.0  # of each request
_BLOCK = 8 * 2**20


class BucketTree:
    def __init__(self, job_dir: str, emulator: str) -> None:
        """`emulator` is its address; "" for Google's service, with the credentials of the server."""
        self._bucket, name = split_url(job_dir)
        self._prefix = directory_prefix(name)
        self._storage = CloudStorage("The server", emulator)

    def page(self, path: tuple[str, ...], after: str) -> FilePage:
        """One page of a directory. Filters again here: an emulator may ignore the offset and the page size."""
        below = self._below(path)
        entries: dict[str, FileEntry] = {}
        with self._errors(), closing(self._storage.client()) as client:
            listing = client.list_blobs(
                self._bucket,
                prefix=below,
                delimiter="/",
                start_offset=below + after if after else None,
                page_size=PAGE_SIZE + 1,
                timeout=_TIMEOUT_S,
                retry=None,
            )
            for page in listing.pages:
                entries |= {name: entry for name, entry in _entries(page, below) if name > after}
                if len(entries) > PAGE_SIZE:
                    break
        return cut(sorted(entries.items(), key=lambda item: item[0]))

    def entry(self, path: tuple[str, ...]) -> FileEntry:
        below = self._below(path)
        with self._errors(), closing(self._storage.client()) as client:
            bucket = client.bucket(self._bucket)
            blob = bucket.get_blob(below.removesuffix("/"), timeout=_TIMEOUT_S, retry=None) if path else None
            if blob is not None:
                return FileEntry(name=path[-1], kind="file", size=blob.size or 0, updated=blob.updated)
            blobs = client.list_blobs(self._bucket, prefix=below, max_results=1, timeout=_TIMEOUT_S, retry=None)
            if path and not any(True for _ in blobs):
                raise NotFound(f"There is no {'/'.join(path)} in the job-dir.")
        return FileEntry(name=path[-1] if path else "", kind="directory")

    def walk(self, path: tuple[str, ...]) -> Generator[tuple[tuple[str, ...], FileEntry], None, None]:
        """Files alone. A name whose parts are no names, such as `a//b` or `../b`, is `other`."""
        below = self._below(path)
        with self._errors(), closing(self._storage.client()) as client:
            for blob in client.list_blobs(self._bucket, prefix=below, timeout=_TIMEOUT_S, retry=None):
                if not (name := blob.name.removeprefix(below)) or name.endswith("/"):
                    continue  # stands for a directory
                parts = tuple(name.split("/"))
                kind: Literal["file", "other"] = "file" if all(map(is_name, parts)) else "other"
                entry = FileEntry(name=parts[-1], kind=kind, size=blob.size or 0, updated=blob.updated)
                yield (*path, *parts), entry

    def content(self, path: tuple[str, ...]) -> Content:
        name = self._below(path).removesuffix("/")
        url = f"{SCHEME}{self._bucket}/{name}"
        client = self._storage.client()
        try:
            blob = self._blob(client, name, url)
        except BaseException:
            client.close()
            raise
        size = blob.size or 0
        # By its name and version: the download address of an emulator may not be reachable from here.
        version = client.bucket(self._bucket).blob(name, generation=blob.generation)
        return Content(path[-1], size, _blocks(client, version, size, url))

    def read(self, path: tuple[str, ...], offset: int, length: int) -> bytes:
        name = self._below(path).removesuffix("/")
        with self._errors(), closing(self._storage.client()) as client:
            blob = client.bucket(self._bucket).blob(name)
            end = offset + length - 1
            return bytes(blob.download_as_bytes(start=offset, end=end, timeout=_TIMEOUT_S, retry=None))

    def _blob(self, client: "Client", name: str, url: str) -> "Blob":
        with self._errors():
            blob = client.bucket(self._bucket).get_blob(name, timeout=_TIMEOUT_S, retry=None)
        if blob is None:
            raise NotFound(f"There is no file {url}.")
        return blob

    def has_directory(self, name: str) -> bool:
        with self._errors(), closing(self._storage.client()) as client:
            below = f"{self._prefix}{name}/"
            blobs = client.list_blobs(self._bucket, prefix=below, max_results=1, timeout=_TIMEOUT_S, retry=None)
            return any(True for _ in blobs)

    def _below(self, path: tuple[str, ...]) -> str:
        return self._prefix + "".join(f"{name}/" for name in path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises what `CloudStorage.errors` raises; only a bucket can be missing here."""
        try:
            with self._storage.errors(f"{SCHEME}{self._bucket}/{self._prefix}"):
                yield
        except NoSuchObject as error:
            where = f" at {self._storage.shown}" if self._storage.emulator else ""
            raise NotFound(f"There is no bucket {SCHEME}{self._bucket}{where}.") from error


def _blocks(client: "Client", blob: "Blob", size: int, url: str) -> Iterator[bytes]:
    """The content in blocks; closes the client at its end."""
    from google.api_core.exceptions import GoogleAPIError

    left = size
    try:
        with closing(client), blob.open("rb", chunk_size=_BLOCK, timeout=_TIMEOUT_S, retry=None) as file:
            while left:
                block = file.read(min(_BLOCK, left))
                if not block:
                    raise OSError(errno.EIO, f"{url} became shorter during the download")
                left -= len(block)
                yield block
    except GoogleAPIError as error:
        # The error's own text has the URL of the storage, which may contain a secret.
        raise OSError(errno.EIO, f"{url}: {type(error).__name__}") from error


def _entries(page: Any, below: str) -> Iterator[tuple[str, FileEntry]]:
    """The entries with their keys. Skips the object that stands for the directory itself."""
    for blob in page:
        if name := blob.name.removeprefix(below):
            yield (
                key(name, is_directory=False),
                FileEntry(name=name, kind="file", size=blob.size or 0, updated=blob.updated),
            )
    for prefix in page.prefixes:
        if name := prefix.removeprefix(below).removesuffix("/"):
            yield key(name, is_directory=True), FileEntry(name=name, kind="directory")
