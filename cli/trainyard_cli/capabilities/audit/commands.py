"""`trainyard audit list`: the rows, as a table or for scripts."""

import functools
import json
from itertools import islice
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import output_options, server_options
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo, printable_json
from trainyard_cli.settings import Target

if TYPE_CHECKING:
    from trainyard_protocol.answers.audit import AuditEntry


@click.command()
@click.option("--actor", default="", metavar="NAME", help="Only what this person or agent did.")
@click.option("--action", default="", help="Only this action, such as jobs.cancel or sign-in.")
@click.option("--since", default="", metavar="WHEN", help="Only since then: 2h or 7d ago, or an RFC 3339 time.")
@click.option("--until", default="", metavar="WHEN", help="Only before then.")
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of rows.  [default: 100]")
@functools.partial(server_options, project_help="Only this project.  [default: all that you may see]")
@output_options
def list_audit(target: Target, output: Output, actor: str, action: str, since: str, until: str, limit: int) -> None:
    """List changes, sign-ins and refused calls, the newest first. For operators and admins of projects.

    With -o json each row is one line.
    """
    from trainyard_cli.client import AuditFilter

    project = click.get_current_context().params["project"] or ""  # without the default of other commands
    query = AuditFilter(project, actor, action, since, until)
    with connect(target) as client:
        rows = list(islice(client.audit(query, limit + 1), limit + 1))
    entries, more = rows[:limit], len(rows) > limit
    if output.kind == "json":
        for entry in entries:
            line = json.dumps(entry.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))
            echo(printable_json(line))
    elif not formats.printed(output, entries):
        headers = ["TIME", "ACTOR", "ACTION", "PROJECT", "SUBJECT", "OUTCOME", "FROM"]
        if entries:
            echo(formats.table(headers, [_row(entry) for entry in entries]))
        else:
            notify("Listed 0 items.")
    if more:
        notify(f"There are more than {limit} rows: give a larger --limit, or a filter.")


def _row(entry: "AuditEntry") -> list[str]:
    from trainyard_cli.output.text.safe import without_control

    outcome = entry.outcome if entry.outcome == "done" else f"{entry.outcome} ({entry.status})"
    if entry.count > 1:
        outcome += f", {entry.count:,} times"
    time = formats.timestamp(entry.time)
    shown = [time, entry.actor, entry.action, entry.project, entry.subject, outcome, entry.address]
    return list(map(without_control, shown))
