"""`trainyard jobs diff`."""

from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.service.completion import job_names
from trainyard_cli.commands.shared.options import JobName, connected, output_options
from trainyard_cli.local.connect import notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo, without_control
from trainyard_protocol.errors import NotFound

if TYPE_CHECKING:
    from trainyard_cli.client import Client

_FEWEST_POINTS = 10


@click.command()
@click.argument("first", type=JobName(), shell_complete=job_names, metavar="JOB")
@click.argument("second", type=JobName(), shell_complete=job_names, metavar="JOB")
@connected
@output_options
def diff(client: "Client", output: Output, first: str, second: str) -> None:
    """Show what differs between two jobs: arguments, config, labels, origin, outcome, last value of each metric."""
    from trainyard_cli.submission.comparison import compared

    rows = compared(*(_with_outcome(client, job) for job in (first, second)))
    if formats.printed(output, rows):
        return
    if not rows:
        notify(f"{first} and {second} have the same arguments, config, labels, origin, outcome and metrics.")
        return
    shown = [[without_control(row[column]) for column in ("field", "first", "second")] for row in rows]
    echo(formats.table(["FIELD", first, second], shown))


def _with_outcome(client: "Client", job: str) -> dict[str, Any]:
    """A job with its origin, its exit code and the last value of each metric."""
    from trainyard_protocol.answers.metrics import number

    detail = client.detail(job)
    metrics = {
        result.name: number(result.last) for result in reversed(client.metrics(job, points=_FEWEST_POINTS).results)
    }
    code = {} if detail.exit_code is None else {"exitCode": detail.exit_code}
    try:
        origin = client.get_origin(job)
    except NotFound:  # where nothing was recorded
        origin = {}
    return {**detail.job, **code, "origin": origin, "metrics": metrics}
