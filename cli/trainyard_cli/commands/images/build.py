"""`trainyard build` and `--build`: the image of a user's own Dockerfile."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from trainyard_cli.commands.images.runtimes import gigabytes, progress_on
from trainyard_cli.local.connect import notify
from trainyard_cli.output.text.safe import echo
from trainyard_cli.runtimes import images
from trainyard_cli.runtimes.images import DOCKERFILE, Recipe


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), default=".", metavar="[DIR]")
@click.option(
    "--tag", default="", metavar="NAME[:TAG]", help="Name of the image.  [default: DIR and a hash of its files]"
)
def build(directory: Path, tag: str) -> None:
    """Build the image of a Dockerfile, for jobs with a custom image.

    Uses this machine's container engine, or the one in DOCKER_HOST. Prints the name of the image.
    """
    project = images.project(directory, tag)
    ensure_built(project, again=bool(tag))
    command = shlex.join(["trainyard", "jobs", "submit", "training", "--master-image-uri", project.image])
    notify(f"To run it:  {command}")
    echo(project.image)


def ensure_built(project: Recipe, *, again: bool = False) -> None:
    """Build the image, unless the engine has it: its name changes with its content. `again`: in any case.

    Raises FailedPrecondition with the last lines of a failed step, Unavailable without an engine.
    """
    with images.engine() as client:
        if not again and images.size_of(client, project.image) is not None:
            notify(f"{project.image} is built: {project.name} has not changed since.")
            return
        notify(f"Building {project.image} from {project.name}.")
        since = time.monotonic()
        with progress_on(sys.stderr, project.name) as progress:
            size = images.build(client, project, progress)
        notify(f"Built {project.image}: {gigabytes(size)}, in {time.monotonic() - since:.0f} s.")


def command_with_build(words: Sequence[str], user_args: Sequence[str], directories: Sequence[Path]) -> str:
    """The command line that submits with the Dockerfile in the first of these directories that has one; "" without a
    Dockerfile. `words` are those of the present command after its name."""
    directory = next((candidate for candidate in directories if (candidate / DOCKERFILE).is_file()), None)
    if directory is None:
        return ""
    shown = os.path.relpath(directory) if directory.is_relative_to(Path.cwd()) else str(directory)
    command = ["trainyard", "jobs", "submit", "training", *words, "--build", shown]
    return shlex.join([*command, *(["--", *user_args] if user_args else [])])
