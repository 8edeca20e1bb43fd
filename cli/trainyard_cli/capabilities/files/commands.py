"""`jobs files` and `jobs download`: what a job has written to its job-dir."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, job_argument, output_options
from trainyard_cli.local.connect import notify
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output, count
from trainyard_cli.output.text.bottom_line import is_live
from trainyard_cli.output.text.safe import echo, printable
from trainyard_protocol.errors import FailedPrecondition

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_protocol.answers.files import FileEntry

_MAX_ENTRIES = 1_000_000
_NAMED = 5


@click.command()
@job_argument
@click.argument("path", default="")
@click.option("-r", "--recursive", is_flag=True, help="Everything below the directory. Links are not followed.")
@connected
@output_options
def files(client: "Client", output: Output, job: str, path: str, recursive: bool) -> None:
    """List the files in a job's job-dir: name, size and time.

    PATH is a directory or a file below the job-dir.
    """
    from trainyard_protocol.fields import sized

    at = _path(path)
    entry = client.file(job, at)
    is_file = entry.kind == "file"
    entries = [(entry.name, entry)] if is_file else list(_entries(client, job, at, recursive=recursive))
    rows = [{**entry.model_dump(mode="json", exclude_none=True), "name": name} for name, entry in entries]
    if formats.printed(output, rows):
        return
    shown = [
        [
            printable(f"{name}{'/' if entry.kind == 'directory' else ''}"),
            "" if entry.size is None else sized(entry.size),
            formats.timestamp(entry.updated),
        ]
        for name, entry in entries
    ]
    if shown:
        echo(formats.table(["NAME", "SIZE", "CHANGED"], shown))
    number = sum(entry.kind == "file" for _, entry in entries)
    size = sum(entry.size or 0 for _, entry in entries if entry.kind == "file" and not entry.is_link)
    notify(f"{count(number, 'file')}, {sized(size)}")


@click.command()
@job_argument
@click.argument("path")
@click.argument("destination", required=False, type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace files that exist. Other files of an existing directory stay.")
@connected
def download(client: "Client", job: str, path: str, destination: Path | None, force: bool) -> None:
    """Download a file or a directory of a job's job-dir. Prints where it is.

    PATH is below the job-dir; `.` is the job-dir itself. It is written to DESTINATION, or into it if that is a
    directory; the default is the current directory. Links to directories are not followed.
    """
    at = _path(path)
    target = destination if destination is not None else Path()
    if target.is_dir():
        target /= at.rpartition("/")[2] or job
    if target.exists() and not force:
        raise FailedPrecondition(f"{target} exists. Add --force to replace it, or name another DESTINATION.")
    if not target.absolute().parent.is_dir():
        raise FailedPrecondition(f"There is no directory {target.absolute().parent}: create it first.")
    entry = client.file(job, at)
    try:
        if entry.kind == "directory":
            _download_directory(client, job, at, target)
        elif target.is_dir():
            raise FailedPrecondition(f"{target} is a directory, and {path} a file. Name another DESTINATION.")
        else:
            with _progress([(entry.name, entry)]) as add:
                client.download(job, at, target, add)
    except OSError as error:
        raise FailedPrecondition(f"{error.filename or target} cannot be written: {error.strerror}.") from error
    echo(str(target))


def _path(path: str) -> str:
    """A path below the job-dir as the server has it: without `./`, and without a slash at its end."""
    return "/".join(part for part in path.split("/") if part != ".").rstrip("/")


def _entries(client: "Client", job: str, path: str, *, recursive: bool) -> "Iterator[tuple[str, FileEntry]]":
    """Entries with their paths relative to the directory `path`. Directories that are links are not entered, and
    names that lead out of a directory are left out."""
    waiting = [""]
    number = 0
    while waiting:
        directory = waiting.pop()
        for entry in client.files(job, f"{path}/{directory}".strip("/")):
            if not is_safe(entry.name):
                notify(f"Left out: {entry.name!r}, which is not a valid file name.")
                continue
            number += 1
            if number > _MAX_ENTRIES:
                raise FailedPrecondition(f"There are more than {_MAX_ENTRIES:,} files. Name a directory below it.")
            name = f"{directory}/{entry.name}".lstrip("/")
            yield name, entry
            if recursive and entry.kind == "directory" and not entry.is_link:
                waiting.append(name)


def is_safe(name: str) -> bool:
    """Whether a name from a server, which a job has chosen, stays in its directory."""
    return name not in ("", ".", "..") and not any(mark in name for mark in "/\\\0")


def _download_directory(client: "Client", job: str, path: str, target: Path) -> None:
    """The directory appears when it is complete; files of an existing one are replaced then."""
    if target.exists() and not target.is_dir():
        raise FailedPrecondition(f"{target} is a file, and {path or 'the job-dir'} a directory.")
    entries = list(_entries(client, job, path, recursive=True))
    left_out = [name for name, entry in entries if entry.kind == "other" or (entry.kind != "file" and entry.is_link)]
    chosen = [(name, entry) for name, entry in entries if entry.kind == "file"]
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.absolute().parent))
    try:
        root, file = draft / "tree", draft / "file"
        root.mkdir()
        for name, entry in entries:
            if entry.kind == "directory" and not entry.is_link:
                (root / name).mkdir(parents=True, exist_ok=True)
        with _progress(chosen) as add:
            for name, _ in chosen:
                client.download(job, f"{path}/{name}".lstrip("/"), file, add)
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                file.replace(root / name)
        if target.is_dir():
            _merge(root, target, [name for name, _ in chosen])
        else:
            root.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    if left_out:
        more = f" and {len(left_out) - _NAMED:,} more" if len(left_out) > _NAMED else ""
        named = ", ".join(map(repr, left_out[:_NAMED]))
        notify(f"Left out, since they are links to directories or out of the job-dir, or no files: {named}{more}.")


def _merge(source: Path, target: Path, names: list[str]) -> None:
    """Move files into an existing directory. Raises FailedPrecondition where a link of it leads out."""
    root = target.resolve()
    for name in names:
        parent = (target / name).parent
        parent.mkdir(parents=True, exist_ok=True)
        if not parent.resolve().is_relative_to(root):
            raise FailedPrecondition(f"{parent} is a link to outside {target}: nothing is written there.")
        (source / name).replace(target / name)


@contextmanager
def _progress(entries: "list[tuple[str, FileEntry]]") -> Iterator[Callable[[int], None]]:
    """A function that counts bytes: on a bar of a terminal, elsewhere for nobody."""
    if not is_live(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, force_terminal=True), transient=True) as bar:
        task = bar.add_task(count(len(entries), "file"), total=sum(entry.size or 0 for _, entry in entries))
        yield lambda length: bar.advance(task, length)
