"""Selects the server from flags and environment, and connects to it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Server, Target, remote_server
from trainyard_protocol.errors import FailedPrecondition, Unavailable
from trainyard_protocol.net.private_files import read_token_file

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_cli.v1_client import V1Client


def find_server(target: Target) -> Server | None:
    """The selected server, running or not; None if none was configured or started."""
    return remote_server(target) or LocalState(target.state_dir).server()


def running_server(target: Target) -> Server | None:
    """The selected server; a local one only while its process is alive."""
    server = find_server(target)
    if server and server.local and LocalState(target.state_dir).process("server") is None:
        return None
    return server


def connect(target: Target, report: Callable[[str], None] | None = None) -> "Client":
    """Client for what needs a server; `report` gets one line when a call is retried, by default on stderr. Raises
    FailedPrecondition or Unavailable without a server."""
    return client_of(needed_server(target), target, report)


def connect_v1(target: Target) -> "V1Client":
    """The same for jobs as JSON alone, which starts in a third of the time."""
    return v1_client_of(needed_server(target), target)


def v1_client_of(server: Server, target: Target) -> "V1Client":
    """Client of a server for jobs as JSON. Reports a token file that others may read or change."""
    from trainyard_cli.v1_client import V1Client

    _report_exposure(server, target, notify)
    return V1Client(server, target.project, notify=notify, flags=target.flags)


def client_of(server: Server, target: Target, report: Callable[[str], None] | None = None) -> "Client":
    """Client of a server. Reports a token file that others may read or change."""
    from trainyard_cli.client import Client

    _report_exposure(server, target, report or notify)
    return Client(server, target.project, notify=report or notify, flags=target.flags)


def needed_server(target: Target) -> Server:
    """The selected server. Raises FailedPrecondition where there is none, Unavailable for a local one that does not
    run."""
    server = find_server(target)
    if server is None:
        raise FailedPrecondition(
            "No server is configured. Start one on this machine with `trainyard up`, log in to one with "
            "`trainyard login URL`, or select one with --server and --token-file (or TRAINYARD_SERVER and "
            "TRAINYARD_TOKEN)."
        )
    if server.local:
        state = LocalState(target.state_dir)
        if state.process("server") is None:
            raise Unavailable(
                "The local server is not running. Start it with `trainyard up`. Running jobs are not affected."
            )
        state.check_port()
    return server


def _report_exposure(server: Server, target: Target, report: Callable[[str], None]) -> None:
    if not server.local and target.token_file is not None:
        exposure = read_token_file(target.token_file).exposure
        if exposure is not None:
            report(exposure.message)


def notify(text: str) -> None:
    """Print a line to stderr."""
    click.echo(text, err=True)
