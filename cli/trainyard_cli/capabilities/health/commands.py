"""`trainyard doctor`."""

import click

from trainyard_cli.commands.shared.options import output_options, server_options
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.settings import Target

NOT_HEALTHY = 3


@click.command()
@server_options
@output_options
def doctor(target: Target, output: Output) -> int:
    """Check this machine, the service and its jobs for problems. Exit code 3 if there are any."""
    from trainyard_cli.capabilities.health.doctor import examine
    from trainyard_cli.output.findings import show

    return 0 if show(tuple(examine(target)), output) else NOT_HEALTHY
