"""`trainyard jobs why`."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, job_argument, output_options
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo

if TYPE_CHECKING:
    from trainyard_cli.client import Client


@click.command()
@job_argument
@connected
@output_options
def why(client: "Client", output: Output, job: str) -> None:
    """Show why a job is queued and what would start it.

    Lists the jobs that hold what it needs, and the smallest changes that would start it now.
    """
    from trainyard_cli.output.jobs import queue_explanation

    view = client.why(job)
    if not formats.printed(output, view.model_dump(mode="json", exclude_none=True)):
        echo(queue_explanation.text(view, client.project, datetime.now(UTC)))
