"""`trainyard secrets`: values go to the server and never come back.

A value is never an argument of a command: everybody on a machine may read those.
"""

import sys
from pathlib import Path

import click

from trainyard_cli.local.connect import connect, notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import Target
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.views.secrets import MAX_VALUE_BYTES


def set_secret(target: Target, name: str, file: Path | None) -> None:
    """Set the value that the file, standard input or the person at the terminal gives. Raises InvalidArgument."""
    value = _asked(name) if file is None and sys.stdin.isatty() else _read(file)
    with connect(target) as client:
        client.set_secret(name, value)
    notify(f"Set the secret {name} of the project {target.project}. Jobs that start from now on get it.")


def list_secrets(target: Target, output: Output) -> None:
    with connect(target) as client:
        secrets = client.secrets().secrets
    if not output.for_people:
        echo(formats.render(output, [secret.model_dump(mode="json") for secret in secrets]))
        return
    if not secrets:
        notify(f"The project {target.project} has no secrets. An admin adds one: trainyard secrets set NAME")
        return
    rows = [
        [
            one.name,
            one.set_by,
            formats.timestamp(one.set_at),
            formats.timestamp(one.last_used_at),
            one.last_used_by,
        ]
        for one in secrets
    ]
    echo(formats.table(["NAME", "SET BY", "SET AT", "LAST USED", "BY JOB"], rows))


def delete_secrets(target: Target, names: tuple[str, ...]) -> None:
    with connect(target) as client:
        for name in dict.fromkeys(names):
            client.delete_secret(name)
            notify(f"Deleted the secret {name} of the project {target.project}. Jobs that run keep it.")


def _asked(name: str) -> str:
    value: str = click.prompt(f"Value of {name}", hide_input=True, err=True)
    return value


def _read(file: Path | None) -> str:
    """The content as it is: a newline at its end is a part of it."""
    try:
        if file is None or str(file) == "-":
            source, data = "Standard input", sys.stdin.buffer.read(MAX_VALUE_BYTES + 1)
        else:
            source = str(file)
            with file.open("rb") as opened:
                data = opened.read(MAX_VALUE_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{file} cannot be read: {error.strerror}.") from error
    if len(data) > MAX_VALUE_BYTES:
        raise InvalidArgument(
            f"{source} has more than {MAX_VALUE_BYTES:,} bytes, the most that a secret may have."
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument(f"{source} is not UTF-8 text: encode it first, as with base64.") from None
