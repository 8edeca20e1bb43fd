"""Job-dirs on gs://: Google Cloud Storage, or an emulator of it.

Google's own client is used, without its long retries: somebody waits for the answer.
"""

import errno
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from trainyard_protocol.errors import FailedPrecondition, NotFound, Unavailable
from trainyard_protocol.file_views import FileEntry
from trainyard_server.storage.job_files.tree import PAGE_SIZE, Content, Page, cut, key

if TYPE_CHECKING:
    from google.cloud.storage import Blob, Client

SCHEME = "gs://"

_TIMEOUT_S = 8.0  # for each answer of the store
_BLOCK = 8 * 2**20
_PROJECT = "trainyard"  # the client wants one; reading needs none
_NO_CREDENTIALS = (
    "The server has no credentials for Google Cloud Storage: GOOGLE_APPLICATION_CREDENTIALS, in its environment, "
    "names a file with some."
)


class BucketTree:
    def __init__(self, job_dir: str, emulator: str) -> None:
        """`emulator`: where it is; "": Google's own, with the credentials of whoever runs the server."""
        self._bucket, _, prefix = job_dir.removeprefix(SCHEME).partition("/")
        self._prefix = prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""
        self._emulator = emulator if "://" in emulator or not emulator else f"http://{emulator}"

    def page(self, path: tuple[str, ...], after: str) -> Page:
        """An emulator may give all at once and from the beginning; what was not asked for is left out here."""
        below = self._below(path)
        found: dict[str, FileEntry] = {}
        with self._telling(f"{SCHEME}{self._bucket}/{below}"), closing(self._client()) as client:
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
                found |= {name: entry for name, entry in _entries(page, below) if name > after}
                if len(found) > PAGE_SIZE:
                    break
        return cut(sorted(found.items(), key=lambda one: one[0]))

    def content(self, path: tuple[str, ...]) -> Content:
        name = self._below(path).removesuffix("/")
        what = f"{SCHEME}{self._bucket}/{name}"
        client = self._client()
        try:
            blob = self._blob(client, name, what)
        except BaseException:
            client.close()
            raise
        size = blob.size or 0
        # Of that version, by our own address of it: an emulator may give one that only others can reach.
        version = client.bucket(self._bucket).blob(name, generation=blob.generation)
        return Content(path[-1], size, _blocks(client, version, size, what))

    def _blob(self, client: "Client", name: str, what: str) -> "Blob":
        with self._telling(what):
            blob = client.bucket(self._bucket).get_blob(name, timeout=_TIMEOUT_S, retry=None)
        if blob is None:
            raise NotFound(f"There is no file {what}.")
        return blob

    def has_directory(self, name: str) -> bool:
        with self._telling(f"{SCHEME}{self._bucket}/{self._prefix}"), closing(self._client()) as client:
            below = f"{self._prefix}{name}/"
            found = client.list_blobs(
                self._bucket, prefix=below, max_results=1, timeout=_TIMEOUT_S, retry=None
            )
            return any(True for _ in found)

    def _below(self, path: tuple[str, ...]) -> str:
        return self._prefix + "".join(f"{name}/" for name in path)

    def _client(self) -> "Client":
        """Raises FailedPrecondition where there are no credentials for it."""
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import GoogleAuthError
        from google.cloud import storage

        try:
            if not self._emulator:
                return storage.Client(project=_PROJECT)
            client = storage.Client(
                project=_PROJECT,
                credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
                client_options={"api_endpoint": self._emulator},
            )
        except GoogleAuthError as error:
            raise FailedPrecondition(_NO_CREDENTIALS) from error
        client._http.max_redirects = 0  # an agent may have named it: it leads nowhere else
        return client

    @contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Says what the store's refusals mean for whoever looks at the job."""
        from google.api_core.exceptions import Forbidden, GoogleAPICallError, GoogleAPIError, Unauthorized
        from google.api_core.exceptions import NotFound as NoSuchThing
        from google.auth.exceptions import GoogleAuthError

        where = f" at {self._emulator}" if self._emulator else ""
        try:
            yield
        except NoSuchThing as error:
            raise NotFound(f"There is no bucket {SCHEME}{self._bucket}{where}.") from error
        except (Forbidden, Unauthorized) as error:
            raise FailedPrecondition(f"The server may not read {what}.") from error
        except GoogleAuthError as error:
            raise FailedPrecondition(_NO_CREDENTIALS) from error
        except GoogleAPIError as error:
            status = f" (HTTP {error.code})" if isinstance(error, GoogleAPICallError) and error.code else ""
            raise Unavailable(f"Google Cloud Storage{where} could not show {what}{status}.") from error
        except OSError as error:  # what requests raises
            raise Unavailable(f"Google Cloud Storage{where} does not answer.") from error


def _blocks(client: "Client", blob: "Blob", size: int, what: str) -> Iterator[bytes]:
    """Closes the client at its end."""
    from google.api_core.exceptions import GoogleAPIError

    left = size
    try:
        with closing(client), blob.open("rb", chunk_size=_BLOCK, timeout=_TIMEOUT_S, retry=None) as file:
            while left:
                block = file.read(min(_BLOCK, left))
                if not block:
                    raise OSError(errno.EIO, f"{what} has become shorter while it was sent")
                left -= len(block)
                yield block
    except GoogleAPIError as error:
        raise OSError(errno.EIO, f"{what}: {error}") from error


def _entries(page: Any, below: str) -> Iterator[tuple[str, FileEntry]]:
    """Each with its key. What has the directory's own name says no more than that there is one."""
    for blob in page:
        if name := blob.name.removeprefix(below):
            yield (
                key(name, is_directory=False),
                FileEntry(name=name, kind="file", size=blob.size or 0, updated=blob.updated),
            )
    for prefix in page.prefixes:
        if name := prefix.removeprefix(below).removesuffix("/"):
            yield key(name, is_directory=True), FileEntry(name=name, kind="directory")
