"""`jobs trials`: the trials of a study, best first."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, job_argument, output_options
from trainyard_cli.local.connect import notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo

if TYPE_CHECKING:
    from trainyard_cli.client import Client


@click.command()
@job_argument
@click.option("--metric", default="", help="Rank them by this metric that they reported.  [default: the study's]")
@click.option(
    "--goal",
    type=click.Choice(("maximize", "minimize"), case_sensitive=False),
    default=None,
    help="Whether that metric is to be large or small.  [default: as its name says]",
)
@connected
@output_options
def trials(client: "Client", output: Output, job: str, metric: str, goal: str | None) -> None:
    """Show the trials of a study, best first: state, metric, hyperparameters and times.

    Everything about one of them: jobs describe JOB/7, jobs stream-logs JOB/7.
    """
    from trainyard_cli.output.jobs import studies

    view = client.trials(job, metric, goal or "")
    rows = [trial.model_dump(mode="json", exclude_none=True) for trial in studies.best_first(view)]
    if formats.printed(output, rows):
        return
    notify(" ".join(filter(None, (studies.totals(view), view.message, studies.unranked(view)))))
    if view.trials:
        echo(studies.trials_text(view, datetime.now(UTC)))
