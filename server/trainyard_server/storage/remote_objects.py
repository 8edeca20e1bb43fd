"""The storage behind `/storage/v1`: another server with the API of Google Cloud Storage, or Google's.

Bodies are streamed in both directions: no object is ever in memory as a whole.
"""

import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import anyio.to_thread

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Unavailable
from trainyard_protocol.net.gcs import without_secret
from trainyard_protocol.net.trust import client_context

if TYPE_CHECKING:
    import httpx

GOOGLE = "https://storage.googleapis.com"
"""Google's own service: the only address that is sent the server's credentials."""

_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
_NO_BODY = ("GET", "HEAD", "DELETE")

_log = logging.getLogger(__name__)

for _name in ("httpx", "httpcore"):  # they log addresses, and that of the local storage has its secret
    logging.getLogger(_name).setLevel(logging.WARNING)


@dataclass(frozen=True, slots=True)
class RemoteCall:
    """A call to the storage. `path` is encoded."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: AsyncIterator[bytes]


class RemoteStorage:
    def __init__(self, address: str) -> None:
        """`address` is `http://HOST:PORT`, with a path where it has a secret, or GOOGLE."""
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")
        self._client: httpx.AsyncClient | None = None
        self._credentials = _ServerCredentials() if self.address == GOOGLE else None

    async def send(self, call: RemoteCall) -> "httpx.Response":
        """The answer, whose body is still to be read; the caller closes it. Raises Unavailable, FailedPrecondition
        without credentials, InvalidArgument for an address that cannot be asked for."""
        import httpx

        client = self._opened()
        headers = {"accept-encoding": "identity", **call.headers}
        if self._credentials is not None:
            token = await anyio.to_thread.run_sync(self._credentials.token)
            headers["authorization"] = f"Bearer {token}"
        query = f"?{call.query}" if call.query else ""
        content = None if call.method in _NO_BODY else call.body
        if content is None:  # a client may have sent one all the same
            headers.pop("content-length", None)
        try:
            url = f"{self.address}{call.path}{query}"
            request = client.build_request(call.method, url, headers=headers, content=content)
            return await client.send(request, stream=True)
        except httpx.InvalidURL as error:
            raise InvalidArgument(f"The storage cannot be asked for this address: {error}.") from error
        except (httpx.HTTPError, ssl.SSLError) as error:
            _log.warning("the storage at %s failed: %s", without_secret(self.address), type(error).__name__)
            raise Unavailable(
                f"The storage at {without_secret(self.address)} does not answer: try again later."
            ) from error

    def path_below(self, location: str) -> str:
        """The path and query of an address of the storage, without what is in front of its API."""
        found = urlsplit(location)
        path = found.path.removeprefix(urlsplit(self.address).path)
        return f"{path}?{found.query}" if found.query else path

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def _opened(self) -> "httpx.AsyncClient":
        import httpx  # a tenth of a second, and most servers never need it

        if self._client is None:
            is_secure = self.address.startswith("https://")
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(300.0, connect=10.0, pool=60.0),
                limits=httpx.Limits(max_connections=200, max_keepalive_connections=20),
                trust_env=is_secure,
                verify=client_context() if is_secure else False,
            )
        return self._client


class _ServerCredentials:
    """Access tokens for Google's service, of the credentials in the server's environment."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._credentials: Any = None

    def token(self) -> str:
        """Raises FailedPrecondition."""
        import google.auth
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        with self._lock:
            try:
                if self._credentials is None:
                    self._credentials, _ = google.auth.default(scopes=[_SCOPE])
                if not self._credentials.valid:
                    self._credentials.refresh(Request())
            except GoogleAuthError as error:
                raise FailedPrecondition(
                    "The server has no credentials for Google Cloud Storage: its operator sets "
                    "GOOGLE_APPLICATION_CREDENTIALS in its environment to a file with them."
                ) from error
            return str(self._credentials.token)
