"""Clients of the server for the calls of tools: on stdio with the user's own token, over HTTP with that of each
request."""

import re
from collections.abc import Mapping
from typing import Any, Protocol

from mcp.server.mcpserver import Context

from trainyard_cli.client import Client
from trainyard_cli.local.connect import find_server, needed_server, notify
from trainyard_cli.local.service import ensure_up
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Server, Target, checked_project
from trainyard_protocol import __version__
from trainyard_protocol.errors import Unauthenticated

NAME = f"trainyard-mcp/{__version__}"
"""The beginning of the user agent that the audit shows."""

_RETRY_DELAYS = (0.5, 1.0, 2.0)  # an agent rather gets an error than no answer
_LONGEST_CLIENT = 80


class Callers(Protocol):
    """`local_files`: the caller is on this machine, and may name files of it."""

    local_files: bool

    def client(self, context: Context[Any, Any], project: str) -> Client:
        """A client with the rights of who calls; "" is the default project."""

    def start_service(self) -> None:
        """Start the service of this machine, where that is the server and it does not run."""

    def storage(self, client: Client) -> str:
        """The address of this machine's storage, in which the caller may make buckets; "" without one."""


class OwnUser:
    """The user who runs the program, on stdio."""

    local_files = True

    def __init__(self, target: Target) -> None:
        self._target = target

    def client(self, context: Context[Any, Any], project: str) -> Client:
        return _client(needed_server(self._target), project or self._target.project, _headers(context))

    def start_service(self) -> None:
        server = find_server(self._target)
        if server is None or server.local:
            ensure_up(LocalState(self._target.state_dir), notify)

    def storage(self, client: Client) -> str:
        return LocalState(self._target.state_dir).storage_url() if client.server.local else ""


class EachRequest:
    """The callers of an HTTP server: each request brings its token, and no other token is used."""

    local_files = False

    def __init__(self, server: Server, project: str) -> None:
        self._server = server
        self._project = project

    def client(self, context: Context[Any, Any], project: str) -> Client:
        headers = context.headers or {}
        peer = getattr(context.request_context.request, "client", None)
        address = forwarded(peer.host if peer is not None else "")
        return self.of_token(bearer(headers), project, {**_headers(context), **address})

    def of_token(self, token: str, project: str, headers: Mapping[str, str]) -> Client:
        """The client of a token. Raises Unauthenticated where there is none."""
        if not token:
            raise Unauthenticated("No token: send the header `Authorization: Bearer TOKEN`.")
        server = Server(self._server.url, token, self._server.local, self._server.ca_file)
        return _client(server, project or self._project, headers)

    def start_service(self) -> None:
        """Nothing: a caller elsewhere starts nothing on this machine."""

    def storage(self, client: Client) -> str:  # noqa: ARG002 - of the protocol
        return ""


def bearer(headers: Mapping[str, str]) -> str:
    """The token of a request; "" without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token.isascii() and token.isprintable() else ""


def forwarded(address: str) -> dict[str, str]:
    """The header with the caller's address, which the server believes of a proxy that it knows."""
    return {"X-Forwarded-For": address} if address else {}


def _client(server: Server, project: str, headers: Mapping[str, str]) -> Client:
    name = checked_project(project, "project")
    return Client(server, name, retry_delays=_RETRY_DELAYS, headers=headers)


def _headers(context: Context[Any, Any]) -> dict[str, str]:
    """The user agent of a call, by the name that the agent's program gives itself in MCP, else in HTTP."""
    params = context.session.client_params
    if params is not None:
        return user_agent(f"{params.client_info.name} {params.client_info.version}")
    return user_agent((context.headers or {}).get("user-agent", ""))


def user_agent(client: str) -> dict[str, str]:
    """The user agent, with the name of the agent's program, which is what that says."""
    name = re.sub(r"[^A-Za-z0-9 ._/-]", "", client)[:_LONGEST_CLIENT].strip()
    return {"User-Agent": f"{NAME} ({name})" if name else NAME}
