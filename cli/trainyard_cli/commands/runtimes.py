"""What `trainyard runtimes list` and `build` print."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import click

from trainyard_cli.local.connect import say
from trainyard_cli.output import formats
from trainyard_cli.output.formats import Output
from trainyard_cli.runtimes import images as runtimes
from trainyard_cli.runtimes.images import Line
from trainyard_protocol.errors import TrainyardError
from trainyard_protocol.machines import GIGABYTE
from trainyard_protocol.runtimes import Runtimes, load_runtimes

_DEVICES = {None: "any", False: "CPU", True: "GPU"}


def list_runtimes(site_file: Path | None, output: Output) -> None:
    """The table, with what the engine has of it. Without an engine: the table, and why on stderr."""
    table = load_runtimes(site_file)
    found, asked = runtimes.lines(table), True
    try:
        with runtimes.engine() as client:
            found = [replace(line, size=runtimes.size_of(client, line.image)) for line in found]
    except TrainyardError as error:
        asked = False
        say(f"Which images are here is not known: {error.message}")
    if output.for_people:
        headers = ["VERSION", "DEVICES", "NAME", "IMAGE", "HERE"]
        rows = [
            [line.version, _DEVICES[line.gpus], line.name, line.image, _here(line, asked, table)]
            for line in found
        ]
        click.echo(formats.table(headers, rows))
    else:
        click.echo(formats.render(output, [_data(line, asked) for line in found]))


def build(
    names: Sequence[str],
    site_file: Path | None,
    base_image: str,
    build_args: Mapping[str, str],
    ca_bundle: Path | None,
) -> None:
    """Build the images one after the other, each said when it is there. The first that fails ends it."""
    table = load_runtimes(site_file)
    recipes = [
        runtimes.recipe(name, table.images[name], base_image, build_args, ca_bundle)
        for name in runtimes.chosen(table, names)
    ]
    if not recipes:
        say("Nothing to build: every image of a replica without GPUs is pulled.")
    with runtimes.engine() as client:
        for recipe in recipes:
            say(f"Building {recipe.name} on {recipe.base_image}.")
            since = time.monotonic()
            with progress_on(sys.stderr, recipe.name) as progress:
                size = runtimes.build(client, recipe, progress)
            click.echo(f"Built {recipe.image}: {_gigabytes(size)}, in {time.monotonic() - since:.0f} s.")


@contextmanager
def progress_on(out: IO[str], name: str) -> Iterator[runtimes.Progress]:
    """Lines for each step; on a terminal also what the step says, in one line that changes."""
    if not out.isatty():
        yield _Steps(out, name)
        return
    with _LiveSteps(out, name) as live:
        yield live


class _Steps:
    def __init__(self, out: IO[str], name: str) -> None:
        self._out = out
        self._name = name

    def step(self, number: int, of: int, instruction: str) -> None:
        print(_heading(self._name, number, of, instruction), file=self._out, flush=True)

    def line(self, text: str) -> None:
        """Nobody watches."""


class _LiveSteps:
    def __init__(self, out: IO[str], name: str) -> None:
        from rich.console import Console
        from rich.text import Text

        self._text = Text
        self._name = name
        self._console = Console(file=out, highlight=False, markup=False, emoji=False)
        self._status = self._console.status("")

    def __enter__(self) -> "_LiveSteps":
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


def _heading(name: str, number: int, of: int, instruction: str) -> str:
    return f"{name}  {number}/{of}  {runtimes.brief(instruction)}"


def _here(line: Line, asked: bool, table: Runtimes) -> str:
    if not asked:
        return "?"
    if line.size is not None:
        return _gigabytes(line.size)
    if table.images[line.name].dockerfile:
        return f"no: trainyard runtimes build {line.name}"
    return "no: pulled when it is needed"


def _data(line: Line, asked: bool) -> dict[str, Any]:
    return {
        "version": line.version,
        "devices": _DEVICES[line.gpus],
        "name": line.name,
        "image": line.image,
        "here": line.size is not None if asked else None,
        "size": line.size,
    }


def _gigabytes(size: int) -> str:
    return f"{size / GIGABYTE:.2f} GB"
