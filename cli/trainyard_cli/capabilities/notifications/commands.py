"""`trainyard channels`: the mail addresses and webhooks that a project's jobs notify."""

import sys
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, output_options
from trainyard_cli.local.connect import notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_LONGEST = 5000
"""Characters that are read of an address."""


@click.command()
@click.argument("name")
@click.argument("address", required=False)
@click.option(
    "--on",
    "events",
    multiple=True,
    type=click.Choice(("end", "failure", "stall")),
    help="An event of any job of the project that is sent there. May be given several times.  [default: failure and "
    "stall]",
)
@click.option("--by-name", is_flag=True, help="Send there only what jobs ask for, by --notify NAME.")
@click.option(
    "--format",
    "body",
    type=click.Choice(("json", "slack")),
    help="The body of the POST; Mattermost and others take Slack's.  [default: slack for hooks.slack.com, else json]",
)
@connected
def set_channel(
    client: "Client", name: str, address: str | None, events: tuple[str, ...], *, by_name: bool, body: str | None
) -> None:
    """Set a channel of --project: a mail address, or a URL that gets a POST. Admins of the project only.

    Without ADDRESS it is asked for, or read from standard input: everybody on a machine can read arguments, and a URL
    of Slack is a secret. Nobody can read the path of a URL again.
    """
    from trainyard_protocol.answers.operating.notifications import ChannelRequest

    if by_name and events:
        raise click.UsageError("--by-name and --on exclude each other: a channel gets events of all jobs, or none.")
    if address is None:
        is_person = sys.stdin.isatty()
        address = click.prompt("Address", hide_input=True, err=True) if is_person else sys.stdin.read(_LONGEST).strip()
    given = {"events": events} if events or by_name else {}
    request = ChannelRequest.model_validate({"address": address, "format": body or "", **given})
    channel = client.set_channel(name, request)
    of_jobs = f"{' and '.join(channel.events)} of all jobs" if channel.events else "what jobs ask for"
    notify(f"Set the channel {name} of the project {client.project}: it gets {of_jobs}.")
    notify(f"Send a first message: trainyard channels test {name}")


@click.command()
@connected
@output_options
def list_channels(client: "Client", output: Output) -> None:
    """List the channels of --project, and whether the last notification was delivered."""
    channels = client.channels().channels
    if formats.printed(output, channels):
        return
    if not channels:
        notify(f"The project {client.project} has no channels. An admin adds one: trainyard channels set NAME ADDRESS")
        return
    rows = [
        [
            channel.name,
            channel.transport,
            channel.address,
            ",".join(channel.events) or "by name",
            str(channel.pending),
            formats.timestamp(channel.last_delivered_at),
            channel.last_error,
        ]
        for channel in channels
    ]
    echo(formats.table(["NAME", "FORMAT", "ADDRESS", "EVENTS", "WAITING", "LAST DELIVERED", "LAST ERROR"], rows))


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@connected
def delete_channels(client: "Client", names: tuple[str, ...]) -> None:
    """Delete channels of --project, with what waits to be delivered to them. Admins of the project only."""
    for name in dict.fromkeys(names):
        client.delete_channel(name)
        notify(f"Deleted the channel {name} of the project {client.project}.")


@click.command()
@click.argument("name")
@connected
def test_channel(client: "Client", name: str) -> int:
    """Send a test to a channel of --project now. Exits with 1 if the receiver did not accept it."""
    error = client.test_channel(name).error
    notify(
        f"The channel {name} did not accept the test: {error}." if error else f"The channel {name} accepted the test."
    )
    return 1 if error else 0


@click.command()
@click.option("--job", default="", metavar="JOB", help="Those of one job.")
@connected
@output_options
def history(client: "Client", job: str, output: Output) -> None:
    """List the newest notifications of --project, and whether they were delivered. They are kept for a week."""
    notifications = client.notifications(job).notifications
    if formats.printed(output, notifications):
        return
    if not notifications:
        notify(f"No notifications of {job or f'the project {client.project}'} in the last week.")
        return
    rows = [
        [
            formats.timestamp(notification.created_at),
            notification.job_id,
            notification.event,
            notification.to,
            notification.state,
            str(notification.attempts),
            formats.timestamp(notification.next_attempt_at),
            notification.error,
        ]
        for notification in notifications
    ]
    echo(formats.table(["TIME", "JOB", "EVENT", "TO", "STATE", "ATTEMPTS", "NEXT", "ERROR"], rows))


@click.command()
@connected
def signing_key(client: "Client") -> None:
    """Print the key of the signatures of the project's webhooks. Admins of the project only.

    A receiver verifies them with a library of Standard Webhooks.
    """
    echo(client.signing_key().key)
