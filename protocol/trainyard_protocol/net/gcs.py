"""Google Cloud Storage and emulators of it: addresses, clients and plain error messages.

Google's client is imported inside the functions: loading it takes a second, and most programs never need it.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable, quoted, shown
from trainyard_protocol.net.storage_calls import BUCKET_RULE, LONGEST_NAME, is_bucket_name

if TYPE_CHECKING:
    from google.cloud.storage import Client

SCHEME = "gs://"
EMULATOR = "STORAGE_EMULATOR_HOST"
"""The variable with the address of an emulator, known to all of Google's clients."""
PROXY_ROOTS = "STORAGE_EMULATOR_ROOTS"
"""The variable with the file of authorities for an emulator that is Google to TensorFlow, as its HTTPS proxy."""
PROXY_USER = "trainyard"
"""The user of that proxy; the secret of the emulator's address is the password."""
OF_RUN = "{job}"
"""In the address of an emulator that an agent gives its replicas: in its place the token of the run."""
HIDDEN = "***"
"""In place of a secret."""

_PROJECT = "trainyard"  # Google's client requires one; reading and writing objects does not use it


class NoSuchObject(NotFound):
    """The bucket or the object does not exist."""


def split_url(url: str) -> tuple[str, str]:
    """Bucket and object: `gs://bucket/a/b` -> ("bucket", "a/b"). Raises InvalidArgument for what names neither."""
    if problem := problem_of(url):
        raise InvalidArgument(f"{shown(url)} {problem}")
    bucket, _, name = url.removeprefix(SCHEME).partition("/")
    return bucket, name


def problem_of(url: str) -> str:
    """Problem of an address, as the rest of a sentence about it; "" if it has none. Google's client sends some wrong
    names on as other paths, and refuses others with an error of Python."""
    bucket, _, name = url.removeprefix(SCHEME).partition("/")
    if not bucket:
        return "names no bucket; it looks like gs://bucket/directory."
    if not is_bucket_name(bucket):
        return f"names no bucket: {quoted(bucket)}, but a bucket's name has {BUCKET_RULE}."
    if name.rstrip("/") in (".", "..") or not {"\r", "\n", "\0"}.isdisjoint(name):
        return "names no object: the name may not be . or .., and has no line ends."
    if len(name.encode(errors="replace")) > LONGEST_NAME:
        return f"is too long: the name of an object has at most {LONGEST_NAME} bytes."
    return ""


def directory_prefix(name: str) -> str:
    """The prefix of all objects in a directory: `a/b` -> "a/b/"; "" for the whole bucket."""
    return f"{name.rstrip('/')}/" if name.strip("/") else ""


def without_secret(address: str) -> str:
    """The address of an emulator as it is shown: a path in it is its secret. `http://host:1/x` -> `http://host:1/***`."""
    scheme, separator, rest = address.rpartition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host}{slash}{HIDDEN if path else ''}"


def proxy_variables(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """The variables by which TensorFlow's own gs:// finds an emulator that is a proxy for it; {} without one.

    `hosts` are called without the proxy.
    """
    roots, emulator = environment.get(PROXY_ROOTS, ""), urlsplit(environment.get(EMULATOR, ""))
    secret = emulator.path.strip("/")
    if not roots or not secret:
        return {}
    return {
        "https_proxy": f"http://{PROXY_USER}:{secret}@{emulator.netloc}",
        "no_proxy": ",".join(dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts])),
        "CURL_CA_BUNDLE": roots,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": PROXY_USER,
    }


@dataclass(frozen=True, slots=True)
class CloudStorage:
    """The emulator at `http://host:port` or `http://host:port/SECRET`, or Google's service with the credentials of the
    environment.

    `user` begins the messages about credentials and permissions: "The server".
    """

    user: str
    emulator: str = ""

    @property
    def address(self) -> str:
        """The URL of the emulator; "" for Google's service."""
        return self.emulator if "://" in self.emulator or not self.emulator else f"http://{self.emulator}"

    @property
    def shown(self) -> str:
        """The URL of the emulator for messages."""
        return without_secret(self.address)

    def client(self) -> "Client":
        """A client, to be closed by the caller. Raises FailedPrecondition without credentials, or without the extra."""
        self._check_installed()
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage

        with self.errors(SCHEME):
            if not self.emulator:
                return storage.Client(project=_PROJECT)
            client = storage.Client(
                project=_PROJECT,
                credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
                client_options={"api_endpoint": self.address},
            )
        client._http.max_redirects = 0  # an agent may have given the address: it leads to no other server
        return client

    @contextmanager
    def errors(self, url: str) -> Iterator[None]:
        """Translates the errors of Google's client. Raises NoSuchObject, FailedPrecondition without credentials or
        permission or the extra, and Unavailable. The text of the storage is only in their cause."""
        self._check_installed()
        from google.api_core.exceptions import Forbidden, GoogleAPICallError, GoogleAPIError, Unauthorized
        from google.api_core.exceptions import NotFound as GoogleNotFound
        from google.auth.exceptions import GoogleAuthError

        storage = f"Google Cloud Storage{f' at {self.shown}' if self.emulator else ''}"
        try:
            yield
        except GoogleNotFound as error:
            raise NoSuchObject(f"{url} does not exist.") from error
        except (Forbidden, Unauthorized) as error:
            raise FailedPrecondition(f"{self.user} may not access {url} (HTTP {error.code}).") from error
        except GoogleAuthError as error:
            raise FailedPrecondition(
                f"{self.user} has no credentials for Google Cloud Storage: set GOOGLE_APPLICATION_CREDENTIALS in its "
                "environment to a file with them."
            ) from error
        except GoogleAPIError as error:
            status = f" (HTTP {error.code})" if isinstance(error, GoogleAPICallError) and error.code else ""
            raise Unavailable(f"{storage} failed for {url}{status}.") from error
        except OSError as error:  # requests' errors
            raise Unavailable(f"{storage} does not answer.") from error

    def _check_installed(self) -> None:
        try:
            importlib.import_module("google.cloud.storage")
        except ModuleNotFoundError as error:
            raise FailedPrecondition(
                f"{self.user} cannot use gs://: google-cloud-storage is not installed there. Install it: "
                "pip install 'trainyard[gcs]'"
            ) from error
