"""The MCP server over streamable HTTP. Each request has the token of its caller, which the server checks."""

import ipaddress
import json
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio.to_thread
import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from trainyard_cli.mcp.callers import EachRequest, bearer, forwarded, user_agent
from trainyard_cli.mcp.program_text import plain
from trainyard_protocol.errors import InvalidArgument, TooManyRequests, TrainyardError, Unauthenticated
from trainyard_protocol.net.loopback import IPV4

PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class McpAddress:
    """The address to listen at, the names of the server, and its certificate."""

    host: str
    port: int
    names: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None

    @property
    def is_loopback(self) -> bool:
        return _address(self.host).is_loopback

    def check(self) -> None:
        """Raises InvalidArgument for an address at which tokens could be read on the network."""
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise InvalidArgument("--tls-cert and --tls-key are needed together.")
        if not self.is_loopback and self.tls_cert is None:
            raise InvalidArgument(
                f"--listen {self.host}: tokens would cross the network in plain text. Give --tls-cert and "
                "--tls-key, or listen on 127.0.0.1 behind a TLS proxy, with --allowed-host for the proxy's name."
            )
        if not self.is_loopback and not self.names:
            raise InvalidArgument(
                f"--listen {self.host}: give --allowed-host NAME, the name by which agents call this server."
            )


def listening(text: str, names: Sequence[str], tls_cert: Path | None, tls_key: Path | None) -> McpAddress:
    """The address of --listen HOST:PORT. Raises InvalidArgument."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InvalidArgument(f"--listen takes HOST:PORT, such as 127.0.0.1:8480; this is {text!r}.")
    made = McpAddress(IPV4 if host == "localhost" else host, int(port), tuple(names), tls_cert, tls_key)
    made.check()
    return made


def application(server: MCPServer[Any], callers: EachRequest, names: Sequence[str]) -> ASGIApp:
    """The application: Host and Origin as the MCP specification has it, then the token, then the tools."""
    allowed = [*_LOOPBACK, *names]
    hosts = [form for name in allowed for form in (name, f"{name}:*")]
    app: Starlette = server.streamable_http_app(
        streamable_http_path=PATH,
        stateless_http=True,
        json_response=True,
        transport_security=TransportSecuritySettings(
            allowed_hosts=hosts,
            allowed_origins=[f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts],
        ),
    )
    app.user_middleware.insert(0, Middleware(CheckedTokens, callers=callers))
    return app


class CheckedTokens:
    """Middleware: a request without a token that the server accepts is answered with 401."""

    def __init__(self, app: ASGIApp, callers: EachRequest) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers, peer = Headers(scope=scope), scope.get("client")
            refusal = await anyio.to_thread.run_sync(self._refusal, bearer(headers), peer[0] if peer else "")
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, token: str, address: str) -> Response | None:
        try:
            with self._callers.of_token(token, "", {**user_agent(""), **forwarded(address)}) as client:
                client.me()
        except TrainyardError as error:
            return _refused(error)
        return None


def _refused(error: TrainyardError) -> Response:
    headers = {"WWW-Authenticate": 'Bearer realm="trainyard"'} if isinstance(error, Unauthenticated) else {}
    if isinstance(error, TooManyRequests) and error.retry_after_s:
        headers["Retry-After"] = str(error.retry_after_s)
    body = json.dumps({"error": plain(error.message)})
    return Response(body, error.http_status, headers, media_type="application/json")


def serve(app: ASGIApp, address: McpAddress, listeners: list[socket.socket]) -> None:
    """Serve until Ctrl-C or SIGTERM."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        ssl_certfile=address.tls_cert,
        ssl_keyfile=address.tls_key,
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run(sockets=listeners)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError as error:
        raise InvalidArgument(
            f"--listen takes an address of this machine, such as 127.0.0.1 or 0.0.0.0; this is {text!r}."
        ) from error
