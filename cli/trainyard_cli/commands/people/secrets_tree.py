"""Commands of secrets. Part of the command tree."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import output_options, server_options
from trainyard_cli.commands.shared.suggestions import CommandGroup
from trainyard_cli.settings import Target

if TYPE_CHECKING:
    from trainyard_cli.output.jobs.formats import Output


@click.group("secrets", cls=CommandGroup)
def secrets_group() -> None:
    """Set, list and delete the secrets of a project, which its jobs may get."""


@secrets_group.command("set")
@click.argument("name")
@click.argument("value", nargs=-1, metavar="")
@click.option(
    "--from-file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path, allow_dash=True),
    help="File with the value, or - for standard input.  [default: ask for it, or standard input]",
)
@server_options
def set_secret(target: Target, name: str, value: tuple[str, ...], file: Path | None) -> None:
    """Set a secret of --project, in place of an earlier value. Admins of the project only.

    Nobody can read the value again, but whoever may submit jobs can run a program that gets it.
    """
    if value:
        raise click.UsageError(
            "A value is no argument, which everybody on this machine can read: type it where it is asked for, or give "
            "it by standard input or --from-file."
        )
    from trainyard_cli.commands.people import secrets

    secrets.set_secret(target, name, file)


@secrets_group.command("list")
@server_options
@output_options
def list_secrets(target: Target, output: "Output") -> None:
    """List the secrets of --project: who set them, and the last job that was started with each."""
    from trainyard_cli.commands.people import secrets

    secrets.list_secrets(target, output)


@secrets_group.command("delete")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@server_options
def delete_secrets(target: Target, names: tuple[str, ...]) -> None:
    """Delete secrets of --project. Jobs that refer to them fail when they start. Admins of the project only."""
    from trainyard_cli.commands.people import secrets

    secrets.delete_secrets(target, names)
