"""Commands `connect` and `disconnect`. Part of the command tree."""

import click

from trainyard_cli.commands.shared.options import server_options
from trainyard_cli.commands.shared.suggestions import CommandGroup
from trainyard_cli.settings import Target


@click.group("connect", cls=CommandGroup)
def connect_group() -> None:
    """Let clients of AI Platform on this machine use your server."""


@connect_group.command("google")
@click.option("--print-env", is_flag=True, help="Print the variables for eval, and nothing else, to stdout.")
@click.option(
    "--hosts/--no-hosts",
    default=True,
    help="Whether names that do not resolve are added to /etc/hosts, which needs root. At a terminal it asks.  "
    "[default: hosts]",
)
@server_options
def connect_google(target: Target, print_env: bool, hosts: bool) -> None:
    """Make names, certificates, a key and a gcloud configuration for gcloud and Google's Python clients.

    They then need no edit: eval "$(trainyard connect google --print-env)"
    """
    from trainyard_cli.commands.service import connect

    connect.connect_google(target, print_env=print_env, hosts=hosts)


@click.group("disconnect", cls=CommandGroup)
def disconnect_group() -> None:
    """Undo what `connect` has changed on this machine."""


@disconnect_group.command("google")
@server_options
def disconnect_google(target: Target) -> None:
    """Remove the names, certificates, key and gcloud configuration, and revoke the key."""
    from trainyard_cli.commands.service import connect

    connect.disconnect_google(target)
