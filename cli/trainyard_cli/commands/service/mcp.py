"""`trainyard mcp`: serves the jobs to AI agents, by the Model Context Protocol."""

import importlib.util
import signal
import sys
from pathlib import Path

import click

from trainyard_cli.commands.shared.options import server_options
from trainyard_cli.local.connect import notify, server_address
from trainyard_cli.settings import Target
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_protocol.net import loopback

BACKLOG = 128
"""Connections that wait for the server to accept them."""


@click.command()
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="Serve streamable HTTP at http://HOST:PORT/mcp; each request brings its own token.  [default: stdio]",
)
@click.option(
    "--allowed-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="A host name that agents use for this server, besides localhost. May be given several times.",
)
@click.option(
    "--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate of --listen (PEM)."
)
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Key of --tls-cert.")
@server_options
def mcp(target: Target, listen: str, names: tuple[str, ...], tls_cert: Path | None, tls_key: Path | None) -> None:
    """Serve jobs to AI agents as MCP tools: submit, wait, logs, compare and others.

    On stdio the agent has the rights of your token. With --listen it has those of the token that each request brings.
    """
    if importlib.util.find_spec("mcp") is None:
        raise FailedPrecondition("The MCP server needs the package mcp:  pip install 'trainyard[mcp]'")
    if not listen and (names or tls_cert or tls_key):
        raise InvalidArgument("--allowed-host, --tls-cert and --tls-key are of --listen.")
    from trainyard_cli.mcp.callers import EachRequest, OwnUser
    from trainyard_cli.mcp.server import mcp_server

    if not listen:
        if sys.stdin.isatty():
            notify("Serving MCP on stdin and stdout. An agent's client starts this command; Ctrl-C ends it.")
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a thread that reads stdin would outlive an exception
        mcp_server(OwnUser(target)).run("stdio")
        return
    from trainyard_cli.mcp import http

    address = http.listening(listen, names, tls_cert, tls_key)
    callers = EachRequest(server_address(target), target.project)
    listeners = loopback.listen(address.host, address.port, BACKLOG)
    host, port = listeners[0].getsockname()[:2]
    scheme = "https" if address.tls_cert else "http"
    notify(f"Serving MCP at {scheme}://{f'[{host}]' if ':' in host else host}:{port}{http.PATH}, until Ctrl-C.")
    http.serve(http.application(mcp_server(callers), callers, names), address, listeners)
