"""`jobs repro`."""

from pathlib import Path

import click

from trainyard_cli.commands.shared.options import job_argument, server_options
from trainyard_cli.settings import Target


@click.command()
@job_argument
@click.argument("directory", required=False, type=click.Path(path_type=Path))
@server_options
def repro(target: Target, job: str, directory: Path | None) -> None:
    """Write a directory with everything to run a job by hand: config, packages, origin, and a script that runs it.

    The default DIRECTORY is ./JOB. It must not exist, or be empty.
    """
    from trainyard_cli.capabilities.origins import repro as reproduction
    from trainyard_cli.local.connect import connect, notify
    from trainyard_cli.local.state import LocalState
    from trainyard_cli.output.text.safe import echo

    target_directory = directory or Path(job)
    with connect(target) as client:
        emulator = LocalState(target.state_dir).storage_url() if client.server.local else ""
        reproduction.write(client, job, target_directory, emulator)
    notify(
        f"{target_directory / 'run.sh'} runs {job} on this machine as one replica; README.md says what else is there."
    )
    echo(str(target_directory))
