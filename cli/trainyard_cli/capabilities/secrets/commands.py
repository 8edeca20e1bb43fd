"""`trainyard secrets`: values go to the server and never come back.

A value is never an argument of a command: everybody on a machine may read those.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, output_options, server_options
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Target
from trainyard_programs import bounded_file
from trainyard_protocol.errors import InvalidArgument

if TYPE_CHECKING:
    from trainyard_cli.client import Client


@click.command()
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
            "A secret must not be an argument, which everybody on this machine can read: type it when asked, or pass "
            "it on standard input or with --from-file."
        )
    if file is None and sys.stdin.isatty():
        secret = click.prompt(f"Value of {name}", hide_input=True, err=True)
    else:
        secret = _read(file)
    with connect(target) as client:
        client.set_secret(name, secret)
    notify(f"Set the secret {name} of the project {target.project}. Jobs that start from now on get it.")


@click.command()
@connected
@output_options
def list_secrets(client: "Client", output: Output) -> None:
    """List the secrets of --project: who set them, and the last job that got each."""
    secrets = client.secrets().secrets
    if formats.printed(output, secrets):
        return
    if not secrets:
        notify(f"The project {client.project} has no secrets. An admin adds one: trainyard secrets set NAME")
        return
    rows = [
        [
            secret.name,
            secret.set_by,
            formats.timestamp(secret.set_at),
            formats.timestamp(secret.last_used_at),
            secret.last_used_by,
        ]
        for secret in secrets
    ]
    echo(formats.table(["NAME", "SET BY", "SET AT", "LAST USED", "BY JOB"], rows))


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@connected
def delete_secrets(client: "Client", names: tuple[str, ...]) -> None:
    """Delete secrets of --project. Jobs that refer to them fail when they start. Admins of the project only."""
    for name in dict.fromkeys(names):
        client.delete_secret(name)
        notify(f"Deleted the secret {name} of the project {client.project}. Jobs that run keep it.")


def _read(file: Path | None) -> str:
    """The content as it is: a newline at its end is a part of it."""
    from trainyard_protocol.answers.secrets import MAX_VALUE_BYTES

    is_stdin = file is None or str(file) == "-"
    source = "Standard input" if is_stdin else str(file)
    try:
        data = bounded_file.beginning(None if is_stdin else file, MAX_VALUE_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_VALUE_BYTES:
        raise InvalidArgument(f"{source} has more than {MAX_VALUE_BYTES:,} bytes, the most that a secret may have.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{source} is not UTF-8 text: encode it first, as with base64.") from None
