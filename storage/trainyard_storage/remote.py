"""Another server with the API of Google Cloud Storage, or Google's: the storage behind a server or a joined machine.

Bodies are streamed in both directions: no object is ever in memory as a whole.
"""

import json
import logging
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import anyio.to_thread

from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Unavailable
from trainyard_protocol.net.gcs import without_secret
from trainyard_protocol.net.storage_calls import DOWNLOADS, JSON_API, Kind, StorageCall, inert_type
from trainyard_protocol.net.trust import client_context
from trainyard_storage.files import Draft
from trainyard_storage.messages import Answer, Call, Refused

if TYPE_CHECKING:
    import httpx

GOOGLE = "https://storage.googleapis.com"
"""Google's own service: the only address that is sent the server's credentials."""

TRACKING = ("/api/2.0/mlflow/", "/api/3.0/mlflow/", "/api/2.0/mlflow-artifacts/")
"""The beginnings of all paths of MLflow's tracking, which a server has beside its storage."""

_SCOPE = "https://www.googleapis.com/auth/devstorage.full_control"
_NO_BODY = ("GET", "HEAD", "DELETE")
_MAX_ANSWER = 1 << 26
_NO_CONTENT, _MULTIPLE_CHOICES, _NOT_MODIFIED = 204, 300, 304
_SENT = frozenset(
    {
        *("content-type", "content-length", "content-range", "content-encoding", "content-md5"),
        *("range", "accept-encoding", "if-match", "if-none-match"),
        *("x-upload-content-type", "x-upload-content-length"),
        *("x-goog-hash", "x-goog-if-generation-match", "x-goog-if-metageneration-match"),
    }
)
"""Headers that go to the storage, beside metadata. One that names another object, `x-goog-copy-source`, must not."""
_ANSWERED = frozenset(
    {
        *("content-length", "content-range", "content-encoding", "accept-ranges", "etag", "last-modified"),
        *("retry-after", "www-authenticate", "x-guploader-uploadid"),
    }
)

_log = logging.getLogger(__name__)

for _name in ("httpx", "httpcore"):  # they log addresses, and that of the local storage has its secret
    logging.getLogger(_name).setLevel(logging.WARNING)


class RemoteStorage:
    def __init__(self, address: str, ca_file: Path | None = None, *, by_proxies: bool = True) -> None:
        """`address` is `http://HOST:PORT`, with a path where it has a secret, or GOOGLE. `ca_file`: the authorities
        that may sign its certificate; None: those of the operating system. `by_proxies`: an https address is called
        through the proxies in the environment."""
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")
        self._ca_file = ca_file
        self._by_proxies = by_proxies
        self._client: httpx.AsyncClient | None = None
        self._credentials = _ServerCredentials() if self.address == GOOGLE else None

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: AsyncIterator[bytes], token: str = ""
    ) -> "httpx.Response":
        """Make a call; the caller closes the answer, whose body is still to be read.

        `target` is its encoded path with the query, `token` the caller's, where the storage asks for one. Only headers
        that belong to the storage go there. Raises Unavailable, FailedPrecondition without credentials,
        InvalidArgument for an address that cannot be asked for.
        """
        import httpx

        client = self.opened()
        kept = {name: value for name, value in headers.items() if name in _SENT or name.startswith("x-goog-meta-")}
        sent = {"accept-encoding": "identity", **kept}
        if self._credentials is not None:
            token = await anyio.to_thread.run_sync(self._credentials.token)
        if token:
            sent["authorization"] = f"Bearer {token}"
        content = None if method in _NO_BODY else body
        if content is None:  # a client may have sent one all the same
            sent.pop("content-length", None)
        try:
            request = client.build_request(method, f"{self.address}{target}", headers=sent, content=content)
            return await client.send(request, stream=True)
        except httpx.InvalidURL as error:
            raise InvalidArgument(f"The storage cannot be asked for this address: {error}.") from error
        except (httpx.HTTPError, ssl.SSLError) as error:
            shown = without_secret(self.address)
            _log.warning("the storage at %s failed: %s", shown, type(error).__name__)
            raise Unavailable(f"The storage at {shown} does not answer: try again later.") from error

    async def answer(
        self, response: "httpx.Response", call: StorageCall, query: Mapping[str, str], base: str
    ) -> Answer:
        """The answer for the caller, with its links below the address that it knows, `base`. Whoever sends a streamed
        body closes the response. Raises Unavailable."""
        headers = _answered(response.headers)
        if location := response.headers.get("location"):
            headers["Location"] = base + self._path_below(location)
        if span := response.headers.get("range"):
            headers["Range"] = span  # TensorFlow's client looks for these names as they are written here
        status = response.status_code
        if status in (_NO_CONTENT, _NOT_MODIFIED):
            await response.aclose()
            headers.pop("content-length", None)
            return Answer(status, tuple(headers.items()))
        is_content = call.kind in (Kind.DOWNLOAD, Kind.PLAIN_GET) or query.get("alt") == "media"
        is_json = headers["content-type"].startswith("application/json")
        if not is_json or is_content or status >= _MULTIPLE_CHOICES:
            return Answer(status, tuple(headers.items()), streamed(response))
        return as_json(with_links(await read_json(response), base), query)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def opened(self) -> "httpx.AsyncClient":
        """The client. Raises InvalidArgument for the file of authorities."""
        import httpx  # a tenth of a second, and most servers never need it

        if self._client is None:
            is_secure = self.address.startswith("https://")
            self._client = httpx.AsyncClient(
                timeout=httpx.Timeout(300.0, connect=10.0, pool=60.0),
                limits=httpx.Limits(max_connections=200, max_keepalive_connections=20),
                trust_env=is_secure and self._by_proxies,
                verify=client_context(self._ca_file) if is_secure else False,
            )
        return self._client

    def _path_below(self, location: str) -> str:
        """The path and query of an address of the storage, without what is in front of its API."""
        parts = urlsplit(location)
        path = parts.path.removeprefix(urlsplit(self.address).path)
        return f"{path}?{parts.query}" if parts.query else path


async def blocks(body: Draft) -> AsyncIterator[bytes]:
    for block in body.blocks(0, body.size):
        yield block


async def streamed(response: "httpx.Response") -> AsyncIterator[bytes]:
    try:
        async for part in response.aiter_raw():
            yield part
    finally:
        await response.aclose()


async def read_json(response: "httpx.Response") -> Any:
    """Raises Unavailable."""
    import httpx

    body = bytearray()
    try:
        async for part in response.aiter_bytes():
            body += part
            if len(body) > _MAX_ANSWER:
                raise Unavailable("The storage answers more than a page of objects has.")
        return json.loads(body)
    except (httpx.HTTPError, ValueError) as error:
        raise Unavailable("The storage's answer is no JSON, or ended early: try again.") from error
    finally:
        await response.aclose()


def with_links(value: Any, base: str) -> Any:
    """Resources with their links below `base`."""
    if not isinstance(value, dict):
        return value
    linked = dict(value)
    for name, area in (("selfLink", JSON_API), ("mediaLink", DOWNLOADS)):
        if isinstance(link := value.get(name), str) and area in link:
            linked[name] = base + link[link.index(area) :]
    if isinstance(value.get("items"), list):
        linked["items"] = [with_links(item, base) for item in value["items"]]
    if "resource" in value:
        linked["resource"] = with_links(value["resource"], base)
    return linked


def as_json(value: Any, query: Mapping[str, str]) -> Answer:
    """The JSON of a resource or a listing, as the query asks for it."""
    form: dict[str, Any] = {"separators": (",", ":")} if query.get("prettyPrint") == "false" else {"indent": 2}
    body = json.dumps(value, **form).encode()
    return Answer(200, (("content-type", "application/json"), ("content-length", str(len(body)))), body)


def _answered(headers: Mapping[str, str]) -> dict[str, str]:
    answered = {name: value for name, value in headers.items() if name in _ANSWERED or name.startswith("x-goog-")}
    content_type = inert_type(headers.get("content-type", ""))
    return {**answered, "content-type": content_type, "content-disposition": "attachment"}


@asynccontextmanager
async def tracked(remote: RemoteStorage, call: Call, token: str) -> AsyncIterator[Answer]:
    """The answer of a server to a call of MLflow's tracking API. `token`: for a call that has none of its own. Raises
    Refused, Unavailable."""
    if not {"", ".", ".."}.isdisjoint(unquote(call.path).strip("/").split("/")):
        raise Refused(HTTPStatus.NOT_FOUND, "There is no such call of MLflow's tracking.")
    kind, _, own = call.headers.get("authorization", "").partition(" ")
    headers = {**call.headers, "content-length": str(call.body.size)}
    token = own if kind.lower() == "bearer" and own else token
    response = await remote.send(call.method, call.target, headers, blocks(call.body), token)
    yield Answer(response.status_code, tuple(_answered(response.headers).items()), streamed(response))


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
