"""Commands without the service: `local train`. Part of the command tree."""

from pathlib import Path
from typing import Any

import click

from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags
from trainyard_cli.commands.shared.options import WithUserArgs
from trainyard_cli.commands.shared.suggestions import CommandGroup


@click.group("local", cls=CommandGroup)
def local_group() -> None:
    """Run a trainer on this machine without the service."""


@local_group.command("train", cls=WithUserArgs)
@click.option(
    "--module-name", required=True, metavar="MODULE", help="The module to run, such as trainer.task."
)
@click.option(
    "--package-path",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The package of the module.  [default: what Python finds from this directory]",
)
@click.option("--job-dir", default="", help="Passed to the program as --job-dir.")
@click.option("--distributed", is_flag=True, help="Run several replicas, with a TF_CONFIG for each.")
@click.option("--worker-count", type=click.IntRange(0, 100), default=2, help="[default: 2]")
@click.option("--parameter-server-count", type=click.IntRange(0, 100), default=2, help="[default: 2]")
@click.option("--evaluator-count", type=click.IntRange(0, 100), default=0, help="[default: 0]")
@click.option(
    "--start-port", type=click.IntRange(1, 65_535), default=27182, help="The chief's port.  [default: 27182]"
)
@gcloud_wide_flags
def train_locally(
    module_name: str, package_path: Path | None, job_dir: str, distributed: bool, **parameters: Any
) -> int:
    """Run a training program, alone or as a chief with workers, parameter servers and evaluators.

    Exits with the exit code of the program, or of the chief.
    """
    from trainyard_cli.commands.jobs.local_train import LocalGang, train

    gang = LocalGang(
        workers=parameters["worker_count"],
        parameter_servers=parameters["parameter_server_count"],
        evaluators=parameters["evaluator_count"],
        start_port=parameters["start_port"],
    )
    return train(module_name, package_path, job_dir, parameters["user_args"], gang if distributed else None)
