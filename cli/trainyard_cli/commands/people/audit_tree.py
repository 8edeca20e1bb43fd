"""Commands of the audit. Part of the command tree."""

import functools
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import output_options, server_options
from trainyard_cli.commands.shared.suggestions import CommandGroup
from trainyard_cli.settings import Target

if TYPE_CHECKING:
    from trainyard_cli.output.jobs.formats import Output


@click.group("audit", cls=CommandGroup)
def audit_group() -> None:
    """See who did what, from where."""


@audit_group.command("list")
@click.option("--actor", default="", metavar="NAME", help="Only what this person or agent did.")
@click.option("--action", default="", help="Only this action, such as jobs.cancel or sign-in.")
@click.option(
    "--since", default="", metavar="WHEN", help="Only since then: 2h or 7d ago, or an RFC 3339 time."
)
@click.option("--until", default="", metavar="WHEN", help="Only before then.")
@click.option("--limit", type=click.IntRange(1), default=100, help="Maximum number of rows.  [default: 100]")
@functools.partial(server_options, project_help="Only this project.  [default: all that you may see]")
@output_options
def list_audit(
    target: Target, output: "Output", actor: str, action: str, since: str, until: str, limit: int
) -> None:
    """List changes, sign-ins and refused calls, the newest first. For operators and admins of projects.

    With -o json each row is one line.
    """
    from trainyard_cli.client import AuditFilter
    from trainyard_cli.commands.people import audit

    project = click.get_current_context().params["project"] or ""  # without the default of other commands
    query = AuditFilter(project, actor, action, since, until)
    audit.list_audit(target, output, query, limit)
