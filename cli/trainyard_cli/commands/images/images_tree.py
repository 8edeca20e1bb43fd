"""Commands about images: `runtimes` and `build`. Part of the command tree."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import output_options, runtimes_option
from trainyard_cli.commands.shared.suggestions import CommandGroup

if TYPE_CHECKING:
    from trainyard_cli.output.jobs.formats import Output


@click.group("runtimes", cls=CommandGroup)
def runtimes_group() -> None:
    """List and build the container images of package jobs."""


@runtimes_group.command("list")
@runtimes_option
@output_options
def list_runtimes(runtimes: Path | None, output: "Output") -> None:
    """List the image of each runtime version, and whether this machine has it."""
    from trainyard_cli.commands.images import runtimes as runtime_commands

    runtime_commands.list_runtimes(runtimes, output)


@runtimes_group.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--base-image",
    default="",
    metavar="IMAGE",
    help="Base image, with Python 3.11 or later.  [default: the runtime's baseImage]",
)
@runtimes_option
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _context, _option, words: dict(map(_assignment, words)),
    help="Build argument, such as PIP_INDEX_URL=... for a mirror. Proxies come from the environment.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificates (PEM) that the build trusts, such as a proxy's. They are not stored in the image.",
)
def build(
    names: tuple[str, ...],
    base_image: str,
    runtimes: Path | None,
    build_args: dict[str, str],
    ca_bundle: Path | None,
) -> None:
    """Build runtime images on this machine's container engine, or the one in DOCKER_HOST.

    Without a NAME, builds the images of replicas without GPUs.
    """
    from trainyard_cli.commands.images import runtimes as runtime_commands

    runtime_commands.build(names, runtimes, base_image, build_args, ca_bundle)


@click.command("build")
@click.argument("directory", type=click.Path(path_type=Path), default=".", metavar="[DIR]")
@click.option(
    "--tag",
    default="",
    metavar="NAME[:TAG]",
    help="Name of the image.  [default: DIR and a hash of its files]",
)
def build_image(directory: Path, tag: str) -> None:
    """Build the image of a Dockerfile, for jobs with a custom image.

    Uses this machine's container engine, or the one in DOCKER_HOST. Prints the name of the image.
    """
    from trainyard_cli.commands.images.build import build as build_project

    build_project(directory, tag)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise click.BadParameter(f"must look like NAME=VALUE, not {text!r}.")
    return name, value
