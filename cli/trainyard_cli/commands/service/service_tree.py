"""Commands of the service: `up`, `down`, `status`, `doctor` and `dashboard`. Part of the command tree."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.shared.options import (
    ContainerUser,
    KeepJobs,
    output_options,
    runtimes_option,
    server_options,
    state_options,
)
from trainyard_cli.settings import PULL_POLICIES, RUNTIMES, Target

if TYPE_CHECKING:
    from trainyard_cli.output.jobs.formats import Output

NOT_HEALTHY = 3


@click.command()
@state_options
@click.option(
    "--capacity",
    type=click.Choice(["fit", "strict"]),
    help="For a job larger than this machine: fit scales it down, strict leaves it queued.  [default: fit]",
)
@click.option("--cpus", metavar="0,1,...", help="CPUs for jobs, such as 0,2-5.  [default: all]")
@click.option(
    "--memory-gb",
    type=click.FloatRange(min=0, min_open=True),
    help="Memory for jobs, in GB.  [default: this machine's]",
)
@click.option(
    "--machine-types",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with your own machine types.",
)
@click.option(
    "--quotas",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the quota of each project.",
)
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    help="Narrow how jobs run. auto: jobs with an image in containers, while a Docker engine answers, and package jobs "
    "as processes. docker: all in containers. process: no containers.  [default: auto]",
)
@runtimes_option
@click.option(
    "--keep-jobs",
    type=KeepJobs(),
    help="Delete jobs so long after their end, such as 90d, with their logs.  [default: all]",
)
@click.option(
    "--keep-logs-gb",
    type=click.FloatRange(min=0),
    metavar="GB",
    help="Size of all logs together: beyond it those of ended jobs are removed, the oldest first; the jobs stay. "
    "[default: 0, no limit]",
)
@click.option(
    "--pull",
    type=click.Choice(PULL_POLICIES),
    help="When to pull a job's image.  [default: missing]",
)
@click.option(
    "--container-user",
    type=ContainerUser(),
    help="Whom containers run as. image: the image's own user, root too. UID:GID: these ids.  [default: you, not "
    "root; where you are root, an unprivileged user]",
)
@click.option(
    "--python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Python interpreter whose packages every job's processes can import, such as an environment with TensorFlow.  "
    "[default: the service's own]",
)
def up(
    state_dir: Path,
    capacity: str | None,
    cpus: str | None,
    memory_gb: float | None,
    machine_types: Path | None,
    quotas: Path | None,
    runtime: str | None,
    runtimes: Path | None,
    pull: str | None,
    container_user: str | None,
    python: Path | None,
    keep_jobs: str | None,
    keep_logs_gb: float | None,
) -> None:
    """Start the service on this machine, in the background. Running parts are left alone."""
    from trainyard_cli.commands.service import service

    given: dict[str, Any] = {
        "capacity": capacity,
        "cpus": cpus,
        "memory_gb": memory_gb,
        "machine_types": str(machine_types.absolute()) if machine_types else None,
        "quotas": str(quotas.absolute()) if quotas else None,
        "runtime": runtime,
        "runtimes": str(runtimes.absolute()) if runtimes else None,
        "pull": pull,
        "container_user": container_user,
        "python": str(python.absolute()) if python else None,
        "keep_jobs": keep_jobs,
        "keep_logs_gb": keep_logs_gb,
    }
    service.up(state_dir, {name: value for name, value in given.items() if value is not None})


@click.command()
@server_options
@click.option("--no-open", is_flag=True, help="Print the sign-in link instead of opening a browser.")
def dashboard(target: Target, no_open: bool) -> None:
    """Open the dashboard in a browser, signed in. Prints the link if there is no browser."""
    from trainyard_cli.commands.service.dashboard import show

    show(target, open_it=not no_open)


@click.command()
@state_options
def down(state_dir: Path) -> None:
    """Stop the service on this machine and all its replicas."""
    from trainyard_cli.commands.service import service

    service.down(state_dir)


@click.command()
@server_options
@output_options
def status(target: Target, output: "Output") -> int:
    """Show processes, health checks, agents and job counts. Exit code 3 if not healthy."""
    from trainyard_cli.commands.service import service

    return 0 if service.status(target, output) else NOT_HEALTHY


@click.command()
@click.option("--fix", is_flag=True, help="Fix the problems that can be fixed safely.")
@server_options
@output_options
def doctor(target: Target, output: "Output", fix: bool) -> int:
    """Check this machine, the service and its jobs for problems. Exit code 3 if there are any."""
    from trainyard_cli.commands.service import doctor as checks

    return 0 if checks.run(target, output, fix) else NOT_HEALTHY
