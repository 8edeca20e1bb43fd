"""From what the flags and the environment say to a client of a server that is there."""

import click

from trainyard_cli.client import PATIENCE, Client
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Server, Where, remote_server
from trainyard_protocol.errors import FailedPrecondition, Unavailable


def find_server(where: Where) -> Server | None:
    """The server to use, running or not; None where nothing was ever configured or started."""
    return remote_server(where) or LocalState(where.state_dir).server()


def running_server(where: Where) -> Server | None:
    """The server to use if there is one; a local one only while its process is alive."""
    server = find_server(where)
    if server and server.local and LocalState(where.state_dir).process("server") is None:
        return None
    return server


def connect(where: Where) -> Client:
    """A client for a command that needs a server. Raises when there is none, saying how to get one."""
    server = find_server(where)
    if server is None:
        raise FailedPrecondition(
            "No server is configured. `trainyard up` starts one on this machine; --server and --token-file "
            "(or TRAINYARD_SERVER and TRAINYARD_TOKEN) name another."
        )
    if server.local and LocalState(where.state_dir).process("server") is None:
        raise Unavailable(
            "The local server is not running. `trainyard up` starts it; jobs go on by themselves."
        )
    return client_of(server, where)


def client_of(server: Server, where: Where) -> Client:
    return Client(server, where.project, patience=PATIENCE, notify=say)


def say(text: str) -> None:
    """A line for the person, not for the pipe."""
    click.echo(text, err=True)
