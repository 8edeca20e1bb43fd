"""`trainyard jobs tensorboard`."""

from pathlib import Path

import click

from trainyard_cli.commands.shared.options import job_argument, server_options
from trainyard_cli.local.connect import connect
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import Target


@click.command()
@job_argument
@click.option("--host", default="127.0.0.1", help="Address that TensorBoard listens on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 2**16 - 1), help="[default: the first free port from 6006 upwards]")
@click.option(
    "--logdir",
    "logdirs",
    multiple=True,
    metavar="DIR",
    help="gs://BUCKET/DIR or a directory to show in place of the job's own. May be given several times.",
)
@server_options
def tensorboard(target: Target, job: str, host: str, port: int | None, logdirs: tuple[str, ...]) -> int:
    """Run TensorBoard on this machine for a job, until Ctrl-C.

    Shows the event files in the job's jobDir, and in locations of gs:// that its arguments --log_dir, --logdir,
    --model_dir and --output_dir name, while the job runs and after it.
    """
    from trainyard_cli.capabilities.tensorboard import server as curves

    with connect(target) as client:
        detail = client.detail(job)
        emulator = LocalState(target.state_dir).storage_url() if client.server.local else ""
    return curves.show(detail, emulator, host=host, port=port, logdirs=tuple(map(_absolute, logdirs)))


def _absolute(logdir: str) -> str:
    return logdir if "://" in logdir else str(Path(logdir).expanduser().absolute())
