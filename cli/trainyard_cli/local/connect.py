"""Selects the server from flags and environment, and connects to it."""

from collections.abc import Callable

import click

from trainyard_cli.client import RETRY_DELAYS, Client
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Server, Target, remote_server
from trainyard_protocol.errors import FailedPrecondition, Unavailable


def find_server(target: Target) -> Server | None:
    """The selected server, running or not; None if none was configured or started."""
    return remote_server(target) or LocalState(target.state_dir).server()


def running_server(target: Target) -> Server | None:
    """The selected server; a local one only while its process is alive."""
    server = find_server(target)
    if server and server.local and LocalState(target.state_dir).process("server") is None:
        return None
    return server


def connect(target: Target, report: Callable[[str], None] | None = None) -> Client:
    """Client for what needs a server; `report` gets one line when a call is retried, by default on stderr. Raises
    FailedPrecondition or Unavailable without a server."""
    server = find_server(target)
    if server is None:
        raise FailedPrecondition(
            "No server is configured. Start one on this machine with `trainyard up`, or select one with --server and "
            "--token-file (or TRAINYARD_SERVER and TRAINYARD_TOKEN)."
        )
    if server.local and LocalState(target.state_dir).process("server") is None:
        raise Unavailable(
            "The local server is not running. Start it with `trainyard up`. Running jobs are not affected."
        )
    return client_of(server, target, report)


def client_of(server: Server, target: Target, report: Callable[[str], None] | None = None) -> Client:
    return Client(server, target.project, retry_delays=RETRY_DELAYS, notify=report or notify)


def notify(text: str) -> None:
    """Print a line to stderr."""
    click.echo(text, err=True)
