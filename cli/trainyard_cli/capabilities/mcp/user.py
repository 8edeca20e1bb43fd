"""Clients of the server for the calls of tools, with the token of the user who runs the program."""

import re
from typing import Any

from mcp.server.mcpserver import Context

from trainyard_cli.client import Client
from trainyard_cli.local.connect import find_server, needed_server, notify
from trainyard_cli.local.service import ensure_up
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Target, checked_project
from trainyard_protocol import __version__

NAME = f"trainyard-mcp/{__version__}"
"""The beginning of the user agent that the audit shows."""

_RETRY_DELAYS = (0.5, 1.0, 2.0)  # an agent rather gets an error than no answer
_LONGEST_CLIENT = 80


class McpUser:
    """The user who runs the program."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def client(self, context: Context[Any, Any], project: str) -> Client:
        """A client with the user's rights; "" is the default project."""
        name = checked_project(project or self._target.project, "project")
        headers = {"User-Agent": _user_agent(context)}
        return Client(needed_server(self._target), name, retry_delays=_RETRY_DELAYS, headers=headers)

    def start_service(self) -> None:
        """Start the service of this machine, where that is the server and it does not run."""
        server = find_server(self._target)
        if server is None or server.local:
            ensure_up(LocalState(self._target.state_dir), notify)

    def storage(self, client: Client) -> str:
        """The address of this machine's storage, in which the user may make buckets; "" without one."""
        return LocalState(self._target.state_dir).storage_url() if client.server.local else ""


def _user_agent(context: Context[Any, Any]) -> str:
    """The user agent of a call, with the name that the agent's program gives itself."""
    params = context.session.client_params
    client = f"{params.client_info.name} {params.client_info.version}" if params is not None else ""
    name = re.sub(r"[^A-Za-z0-9 ._/-]", "", client)[:_LONGEST_CLIENT].strip()
    return f"{NAME} ({name})" if name else NAME
