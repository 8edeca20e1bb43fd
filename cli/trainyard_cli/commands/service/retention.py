"""`trainyard retention`: what would be removed, before it is."""

from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, output_options
from trainyard_cli.local.options import KeepJobs
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo, printable

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_protocol.views.stored.retention import RemovalAmount


@click.command()
@click.option(
    "--within",
    default="7d",
    metavar="DURATION",
    help="Also show what would be removed within this time.",
    show_default=True,
)
@click.option("--keep-jobs", type=KeepJobs(), help="Try another --keep-jobs of the site.  [default: the one in force]")
@click.option(
    "--keep-logs-gb",
    type=click.FloatRange(min=0),
    metavar="GB",
    help="Try another --keep-logs-gb of the site.  [default: the one in force]",
)
@connected
@output_options
def retention(client: "Client", output: Output, within: str, keep_jobs: str | None, keep_logs_gb: float | None) -> None:
    """Show which jobs and logs would be removed for their age or size, by project. Operators only.

    Nothing is removed by this command, nor because of the limits that it tries.
    """
    from trainyard_protocol.fields import sized

    forecast = client.retention_forecast(within, keep_jobs or "", keep_logs_gb)
    if formats.printed(output, forecast.model_dump(mode="json")):
        return
    rows = [
        [
            project.project,
            "all" if project.keep_jobs_s is None else f"{project.keep_jobs_s / 86400:g}d",
            "-" if project.keep_log_bytes is None else sized(project.keep_log_bytes),
            sized(project.log_bytes),
            _amount(project.now),
            _amount(project.later),
        ]
        for project in forecast.projects
    ]
    echo(formats.table(["PROJECT", "KEEPS JOBS", "LOGS UP TO", "LOGS", "GOES NOW", f"WITHIN {within.upper()}"], rows))
    if forecast.keep_log_bytes is not None:
        echo(f"\nAll logs together may have {sized(forecast.keep_log_bytes)}.")
    if not forecast.items:
        echo("\nNothing would be removed.")
        return
    shown = [
        [
            "now" if item.is_now else "later",
            item.what,
            printable(item.project),
            printable(item.job),
            formats.timestamp(item.ended_at),
            sized(item.log_bytes),
        ]
        for item in forecast.items
    ]
    echo(f"\n{formats.table(['WHEN', 'WHAT', 'PROJECT', 'JOB', 'ENDED', 'LOG'], shown)}")
    if forecast.left_out:
        echo(f"and {forecast.left_out} more")


def _amount(amount: "RemovalAmount") -> str:
    from trainyard_protocol.fields import sized

    if not (amount.jobs or amount.logs):
        return "nothing"
    parts = [formats.count(amount.jobs, "job")] if amount.jobs else []
    parts += [formats.count(amount.logs, "log")] if amount.logs else []
    return f"{', '.join(parts)}, {sized(amount.log_bytes)}"
