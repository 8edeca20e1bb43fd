"""HTTP client for the server's agent API. Every failure is one of `trainyard_protocol.errors`."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from trainyard_protocol.answers.secrets import RunSecrets
from trainyard_protocol.answers.usage import UsageBatch, UsageReceipt
from trainyard_protocol.errors import Internal, Unavailable, from_body
from trainyard_protocol.net.trust import client_context, tls_failure
from trainyard_protocol.wire.agents import AGENT_KEY, ServerAbout
from trainyard_protocol.wire.attachments import MOST_MESSAGE
from trainyard_protocol.wire.logs import LogChunk, LogReceipt
from trainyard_protocol.wire.sync import PackageLinks, SyncRequest, SyncResponse

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

_Answer = TypeVar("_Answer", bound=BaseModel)
_CONNECT_S = 5.0
_ANSWER_S = 30.0


class ChecksumMismatch(Exception):
    """A download does not have the requested SHA-256."""


class ServerClient:
    """Client of one server. `token` lets an agent join, `key` is this agent's own. `ca_file`: the authorities that may
    sign the server's certificate; None: those of the operating system. `transport` is for tests that call an app in
    their own process. Raises InvalidArgument for a CA file without certificates."""

    def __init__(
        self,
        server: str,
        token: str,
        key: str,
        ca_file: Path | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.server = server
        self._ca_file = ca_file
        self._headers = {"Authorization": f"Bearer {token}", AGENT_KEY: key}
        self._tls = client_context(ca_file) if server.startswith("https://") else None
        # Without httpx's client, whose cookies, redirects and proxies take half of the time of a call.
        self._transport = transport or httpx.AsyncHTTPTransport(verify=self._tls or False, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.aclose()

    async def about(self) -> ServerAbout:
        """The server's version, and the name that the token gives this agent. Raises Unauthenticated,
        PermissionDenied, Unavailable; NotFound where no Trainyard server answers."""
        return await self._call("GET", "/agent/v1/server", ServerAbout)

    async def sync(self, request: SyncRequest) -> SyncResponse:
        """Report the runs and receive the orders. Takes up to `request.wait_s` and a little more. May be cancelled."""
        return await self._post("/agent/v1/sync", request, SyncResponse, request.wait_s + _ANSWER_S)

    async def send_log(self, run_id: str, task: str, chunk: LogChunk) -> LogReceipt:
        """Send a chunk of a log. Raises NotFound if the server does not know the run."""
        return await self._post(f"/agent/v1/runs/{run_id}/replicas/{task}/logs", chunk, LogReceipt)

    async def send_usage(self, batch: UsageBatch) -> UsageReceipt:
        """Send usage measurements."""
        return await self._post("/agent/v1/usage", batch, UsageReceipt)

    async def secrets(self, run_id: str) -> RunSecrets:
        """The values of the secrets that the run's job refers to. Raises FailedPrecondition for one that cannot be
        given, NotFound once the run has ended."""
        return await self._call("GET", f"/agent/v1/runs/{run_id}/secrets", RunSecrets)

    async def package_links(self, run_id: str) -> PackageLinks:
        """Paths of this server at which replicas get the run's staged packages without a token. Raises NotFound once
        the run has ended."""
        return await self._call("GET", f"/agent/v1/runs/{run_id}/packages", PackageLinks)

    def open_stream(self, attachment_id: str, stream: int) -> "ClientConnection":
        """The agent's end of a stream, for threads; its user closes it. Raises Unavailable."""
        from trainyard_protocol.net.sockets import SocketRefused, open_socket

        url = f"{self.server}/agent/v1/attachments/{attachment_id}/streams/{stream}"
        try:
            return open_socket(url, self._headers, self._tls, most_bytes=MOST_MESSAGE)
        except SocketRefused as error:
            raise Unavailable(f"The server at {self.server} opens no stream ({error}).") from error

    async def download(self, sha256: str, filename: str, target: Path) -> None:
        """Download a staged package. Raises ChecksumMismatch, and leaves no file, if its SHA-256 differs."""
        total = hashlib.sha256()
        try:
            async with self._answer("GET", f"/agent/v1/staging/{sha256}/{filename}") as response:
                if response.is_error:
                    await response.aread()
                    _raise(response)
                with target.open("wb") as file:
                    async for block in response.aiter_bytes():
                        total.update(block)
                        file.write(block)
        except httpx.HTTPError as error:
            target.unlink(missing_ok=True)
            raise self._unavailable(error) from error
        if total.hexdigest() != sha256:
            target.unlink()
            raise ChecksumMismatch(f"{filename} arrived with the SHA-256 {total.hexdigest()}, not {sha256}")

    async def _post(self, path: str, body: BaseModel, kind: type[_Answer], answer_s: float = _ANSWER_S) -> _Answer:
        return await self._call("POST", path, kind, body.model_dump_json().encode(), answer_s)

    async def _call(
        self, method: str, path: str, kind: type[_Answer], content: bytes | None = None, answer_s: float = _ANSWER_S
    ) -> _Answer:
        try:
            async with self._answer(method, path, content, answer_s) as response:
                await response.aread()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unavailable(error) from error
        if response.is_error:
            _raise(response)
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False)  # the answer may have secrets
            problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in details)
            raise Internal(
                f"The server at {self.server} answered {path} with an invalid response: {problems}"
            ) from None

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, content: bytes | None = None, answer_s: float = _ANSWER_S
    ) -> AsyncIterator[httpx.Response]:
        """The answer to a call, JSON if it has content, to be read. Raises httpx.HTTPError."""
        headers = {**self._headers, "Accept-Encoding": "gzip"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        timeout = httpx.Timeout(answer_s, connect=_CONNECT_S).as_dict()
        request = httpx.Request(
            method,
            f"{self.server.rstrip('/')}{path}",
            headers=headers,
            content=content,
            extensions={"timeout": timeout},
        )
        response = await self._transport.handle_async_request(request)
        try:
            yield response
        finally:
            await response.aclose()

    def _unavailable(self, error: httpx.HTTPError | httpx.InvalidURL) -> Unavailable:
        if failure := tls_failure(error, self.server, self._ca_file):
            return Unavailable(failure)
        reason = str(error) or type(error).__name__  # that of a time-out has no text
        message = f"The server at {self.server} does not answer ({reason})."
        if isinstance(error, httpx.RemoteProtocolError) and self.server.startswith("http://"):
            message += " Does it speak HTTPS? Its address then begins with https://."
        return Unavailable(message)


def _raise(response: httpx.Response) -> None:
    try:
        body = response.json()
    except ValueError:
        body = None
    raise from_body(response.status_code, body)
