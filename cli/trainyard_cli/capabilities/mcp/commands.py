"""`trainyard mcp`: serves the jobs to AI agents, by the Model Context Protocol."""

import importlib.util
import signal
import sys

import click

from trainyard_cli.commands.shared.options import server_options
from trainyard_cli.local.connect import notify
from trainyard_cli.settings import Target
from trainyard_protocol.errors import FailedPrecondition


@click.command()
@server_options
def mcp(target: Target) -> None:
    """Serve jobs to AI agents as MCP tools: submit, wait, logs, compare and others.

    An agent's client starts this command and speaks with it on stdin and stdout. The agent has the rights of your
    token.
    """
    if importlib.util.find_spec("mcp") is None:
        raise FailedPrecondition("The MCP server needs the package mcp:  pip install 'trainyard[mcp]'")
    from trainyard_cli.capabilities.mcp.server import mcp_server
    from trainyard_cli.capabilities.mcp.user import McpUser

    if sys.stdin.isatty():
        notify("Serving MCP on stdin and stdout. An agent's client starts this command; Ctrl-C ends it.")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread that reads stdin would outlive an exception
    mcp_server(McpUser(target)).run("stdio")
