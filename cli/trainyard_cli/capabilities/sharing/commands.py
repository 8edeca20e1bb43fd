"""`trainyard usage`: hours of CPUs and GPUs, by those who used them."""

import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, output_options
from trainyard_cli.local.connect import notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_protocol.answers.operating.accounting import UsageReport, UsageReportRow

_NUMBERS = ("runs", "failed_runs", "cpu_hours", "gpu_hours", "idle_gpu_hours", "mean_wait_s")


@click.command()
@click.option(
    "--by",
    multiple=True,
    metavar="GROUP",
    help="A group: project, user, month, or label:NAME. May be given several times.  [default: project]",
)
@click.option("--of", "of_project", default="", metavar="PROJECT", help="One project.  [default: all that you may see]")
@click.option("--since", default="", metavar="DAY|MONTH", help="From then on, as 2026-11.  [default: this month]")
@click.option("--until", default="", metavar="DAY|MONTH", help="Up to then, as 2026-11-20.  [default: today]")
@click.option("--csv", is_flag=True, help="Print CSV.")
@connected
@output_options
def usage(
    client: "Client", by: tuple[str, ...], of_project: str, since: str, until: str, output: Output, *, csv: bool
) -> None:
    """Show CPU-hours, GPU-hours, waits and failures by project, user, month or label."""
    report = client.usage_report(by, of_project, since, until)
    if csv:
        _write_csv(report)
        return
    if formats.printed(output, report):
        return
    if not report.rows:
        notify(f"No runs from {report.first_day} to {report.last_day}.")
        return
    header = [*(group.removeprefix("label:").upper() for group in report.groups), "GPU-HOURS", "IDLE", "CPU-HOURS"]
    total = ["total", *[""] * (len(report.groups) - 1)]
    rows = [[*(key or "-" for key in row.keys), *_values(row)] for row in report.rows]
    echo(formats.table([*header, "RUNS", "FAILED", "MEAN WAIT"], [*rows, [*total, *_values(report.total)]]))


def _write_csv(report: "UsageReport") -> None:
    from csv import writer

    lines = writer(sys.stdout, lineterminator="\n")
    lines.writerow([*report.groups, *_NUMBERS])
    lines.writerows([*row.keys, *(getattr(row, name) for name in _NUMBERS)] for row in report.rows)


def _values(row: "UsageReportRow") -> list[str]:
    wait = "" if row.mean_wait_s is None else f"{timedelta(seconds=round(row.mean_wait_s))}"
    hours = [f"{hours:,.1f}" for hours in (row.gpu_hours, row.idle_gpu_hours, row.cpu_hours)]
    return [*hours, f"{row.runs:,}", f"{row.failed_runs:,}", wait]
