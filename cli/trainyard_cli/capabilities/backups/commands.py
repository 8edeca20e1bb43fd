"""`trainyard backup`, `restore` and `rehearse`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.shared.options import connected, output_options, state_options
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.output.text.activity import Activity
from trainyard_cli.output.text.safe import echo
from trainyard_protocol.errors import FailedPrecondition

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_protocol.answers.stored.backups import BackupManifest

_archive_argument = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_database_option = click.option(
    "--database",
    metavar="URL",
    default="",
    envvar="TRAINYARD_RESTORE_DATABASE",
    help="An empty PostgreSQL database, for the backup of a service that has one.  [default: "
    "$TRAINYARD_RESTORE_DATABASE]",
)
FAULTY = 1


@click.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@connected
def backup(client: "Client", file: Path, *, force: bool) -> None:
    """Write everything that the service stores to FILE, while it runs. Operators only.

    Nothing that the service had acknowledged before is missing. FILE has all keys, tokens and secrets: protect it as
    you protect those. `trainyard rehearse FILE` proves that it can be used.
    """
    from trainyard_cli.capabilities.backups.archive import receive
    from trainyard_protocol.fields import sized

    if file.exists() and not force:
        raise FailedPrecondition(f"{file} exists. Add --force to replace it, or name another file.")
    received = 0
    try:
        with Activity() as activity:
            activity.report("waiting for the server's copy of its database")

            def progress(length: int) -> None:
                nonlocal received
                received += length
                activity.report(f"received {sized(received)}")

            manifest = receive(client.backup(), file, progress)
    except OSError as error:
        raise FailedPrecondition(f"{file} cannot be written: {error.strerror}.") from error
    echo(f"{file}: {sized(received)}, verified. {_contents(manifest)}")


@click.command()
@_archive_argument
@_database_option
@state_options
def restore(state_dir: Path, file: Path, database: str) -> None:
    """Make a new state directory from the backup in FILE. It must be empty, or not there yet.

    Everything is verified before it is moved into place; after a Ctrl-C or a crash the same command begins anew. Stop
    the service that the backup is of before you start this one: both would run the same jobs.
    """
    from trainyard_cli.capabilities.backups.restoring import restore as restore_into
    from trainyard_protocol.fields import sized

    unpacked = 0
    try:
        with Activity() as activity:

            def progress(length: int) -> None:
                nonlocal unpacked
                unpacked += length
                activity.report(f"unpacked {sized(unpacked)}")

            restored = restore_into(file, state_dir, database, progress)
    except OSError as error:
        raise FailedPrecondition(f"{error.filename or state_dir} cannot be written: {error.strerror}.") from error
    echo(f"Restored {restored.root}. {_contents(restored.manifest)}")
    for option, path in restored.missing.items():
        flag = option.replace("_", "-")
        echo(f"This machine has no {path}: copy it, or give `trainyard up` another --{flag}.")
    echo("Stop the original service if it still runs: otherwise both run the same jobs.")
    echo(f"Start it: trainyard up --state-dir {restored.root}")
    echo("Jobs that were running then continue from their checkpoints.")


@click.command()
@_archive_argument
@_database_option
@click.option(
    "--directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory in which FILE is unpacked.  [default: the system's directory for temporary files]",
)
@output_options
def rehearse(file: Path, database: str, directory: Path | None, output: Output) -> int:
    """Start the backup in FILE beside everything else, and check all that can be checked. Exit code 1 for a fault.

    No agent is started, no job moves and nothing is sent. Afterwards everything is removed, but for what was restored
    into --database.
    """
    from trainyard_cli.capabilities.backups import rehearsal

    try:
        with Activity() as activity:
            result = rehearsal.rehearse(file, database, directory, activity.report)
    except OSError as error:
        raise FailedPrecondition(f"FILE cannot be unpacked: {error.strerror}. Try another --directory.") from error
    data = {"good": result.is_good, "examined": [part.model_dump(mode="json") for part in result.examined]}
    if not formats.printed(output, data):
        if result.manifest is not None:
            echo(f"{_contents(result.manifest)}\n")
        rows = [[part.what, str(part.count), str(len(part.faults) or "none")] for part in result.examined]
        echo(formats.table(["EXAMINED", "COUNT", "FAULTS"], rows))
        for part in result.examined:
            for fault in part.faults:
                echo(f"FAULT in {part.what}: {fault}")
        echo("\nThe backup can be restored." if result.is_good else "\nThe backup has faults.")
    return 0 if result.is_good else FAULTY


def _contents(manifest: "BackupManifest") -> str:
    counts = manifest.counts
    size = formats.count(len(manifest.files), "file")
    jobs, secrets = formats.count(counts.get("jobs", 0), "job"), formats.count(counts.get("secrets", 0), "secret")
    return f"It is of {manifest.time:%Y-%m-%d %H:%M:%S} UTC, release {manifest.version}: {jobs}, {secrets}, {size}."
