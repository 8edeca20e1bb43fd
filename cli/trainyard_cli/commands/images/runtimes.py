"""`trainyard runtimes list` and `build`."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import click

from trainyard_cli.commands.shared.options import output_options, runtimes_option
from trainyard_cli.local.connect import notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.safe import echo
from trainyard_cli.runtimes import images
from trainyard_cli.runtimes.images import RuntimeTableRow
from trainyard_protocol.errors import TrainyardError

if TYPE_CHECKING:
    from trainyard_protocol.job.runtimes import Runtimes

_DEVICES = {None: "any", False: "CPU", True: "GPU"}


@click.command()
@runtimes_option
@output_options
def list_runtimes(runtimes: Path | None, output: Output) -> None:
    """List the image of each runtime version, and whether this machine has it."""
    from trainyard_protocol.job.runtimes import load_runtimes

    table = load_runtimes(runtimes)
    listed, engine_answers = images.lines(table), True
    try:
        with images.engine() as client:
            listed = [replace(line, size=images.size_of(client, line.image)) for line in listed]
    except TrainyardError as error:
        engine_answers = False
        notify(f"Cannot tell which images this machine has: {error.message}")
    if not formats.printed(output, [_data(line, engine_answers) for line in listed]):
        headers = ["VERSION", "DEVICES", "NAME", "IMAGE", "HERE"]
        rows = [
            [line.version, _DEVICES[line.gpus], line.name, line.image, _on_engine(line, engine_answers, table)]
            for line in _grouped(listed)
        ]
        echo(formats.table(headers, rows))


@click.command()
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
    envvar="PIP_CERT",
    help="Certificates (PEM) that the build trusts, such as a proxy's. They are not stored in the image.  "
    "[default: $PIP_CERT, if set]",
)
def build(
    names: tuple[str, ...], base_image: str, runtimes: Path | None, build_args: dict[str, str], ca_bundle: Path | None
) -> None:
    """Build runtime images on this machine's container engine, or the one in DOCKER_HOST.

    Without a NAME, builds the images of replicas without GPUs.
    """
    from trainyard_protocol.job.runtimes import load_runtimes

    table = load_runtimes(runtimes)
    recipes = [
        images.recipe(name, table.images[name], base_image, build_args, ca_bundle)
        for name in images.images_to_build(table, names)
    ]
    if not recipes:
        notify("Nothing to build: all images of replicas without GPUs are pulled.")
    with images.engine() as client:
        for recipe in recipes:
            notify(f"Building {recipe.name} on {recipe.base_image}.")
            since = time.monotonic()
            with progress_on(sys.stderr, recipe.name) as progress:
                size = images.build(client, recipe, progress)
            echo(f"Built {recipe.image}: {gigabytes(size)}, in {time.monotonic() - since:.0f} s.")
            if use := images.use_of(table, recipe.name):
                notify(use)


@contextmanager
def progress_on(out: IO[str], name: str) -> Iterator[images.BuildProgress]:
    """Progress output: a line per step; on a terminal also the step's latest line."""
    if not out.isatty():
        yield _PlainProgress(out, name)
        return
    with _LiveProgress(out, name) as live:
        yield live


class _PlainProgress:
    def __init__(self, out: IO[str], name: str) -> None:
        self._out = out
        self._name = name

    def step(self, number: int, of: int, instruction: str) -> None:
        print(_heading(self._name, number, of, instruction), file=self._out, flush=True)

    def line(self, text: str) -> None:
        """Not printed."""


class _LiveProgress:
    def __init__(self, out: IO[str], name: str) -> None:
        from rich.console import Console
        from rich.text import Text

        self._text = Text
        self._name = name
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._status = self._console.status("")

    def __enter__(self) -> "_LiveProgress":
        self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def step(self, number: int, of: int, instruction: str) -> None:
        self._console.print(_heading(self._name, number, of, instruction), overflow="ellipsis", no_wrap=True)
        self._status.update("")

    def line(self, text: str) -> None:
        self._status.update(self._text(text[: self._console.width - 4], style="dim"))


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise click.BadParameter(f"must look like NAME=VALUE, not {text!r}.")
    return name, value


def _heading(name: str, number: int, of: int, instruction: str) -> str:
    return f"{name}  {number}/{of}  {images.brief(instruction)}"


def _grouped(rows: Sequence[RuntimeTableRow]) -> list[RuntimeTableRow]:
    """One row for all versions of an image."""
    grouped: dict[tuple[bool | None, str], RuntimeTableRow] = {}
    for row in rows:
        first = grouped.get((row.gpus, row.name))
        version = f"{first.version}, {row.version}" if first is not None else row.version
        grouped[(row.gpus, row.name)] = replace(row, version=version)
    return list(grouped.values())


def _on_engine(line: RuntimeTableRow, engine_answers: bool, table: "Runtimes") -> str:
    if not engine_answers:
        return "?"
    if line.size is not None:
        return gigabytes(line.size)
    if table.images[line.name].dockerfile:
        return f"no: trainyard runtimes build {line.name}"
    return "no: pulled when needed"


def _data(line: RuntimeTableRow, engine_answers: bool) -> dict[str, Any]:
    return {
        "version": line.version,
        "devices": _DEVICES[line.gpus],
        "name": line.name,
        "image": line.image,
        "here": line.size is not None if engine_answers else None,
        "size": line.size,
    }


def gigabytes(size: int) -> str:
    """A size of an image, in words."""
    from trainyard_protocol.job.resources import GIGABYTE

    return f"{size / GIGABYTE:.2f} GB"
