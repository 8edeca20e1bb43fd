"""What `jobs submit training` and `jobs validate` do, from flags to exit code."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from trainyard_cli.client import Client
from trainyard_cli.commands import jobs
from trainyard_cli.local.connect import client_of, find_server, running_server, say
from trainyard_cli.local.service import ensure_up
from trainyard_cli.local.state import LocalState
from trainyard_cli.output import formats
from trainyard_cli.output.follow import stream
from trainyard_cli.output.formats import Output
from trainyard_cli.output.log_screen import screen_for
from trainyard_cli.settings import Server, Where
from trainyard_cli.submission import submit as submission
from trainyard_cli.submission.flags import JobFlags, get
from trainyard_cli.submission.upload import ensure_bucket, to_bucket, to_server
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument, Unavailable
from trainyard_protocol.machines import Catalog, load_catalog


def submit(
    where: Where,
    output: Output,
    flags: JobFlags,
    *,
    name: str,
    config: Path | None,
    user_args: tuple[str, ...],
    stream_logs: bool,
) -> int:
    """Submit one job; with `stream_logs` follow it and return its exit code."""
    draft = submission.draft(config, flags, here=_here(), name=name, user_args=user_args)
    state = LocalState(where.state_dir)
    server = find_server(where)
    submission.check_locally(draft, _catalog(server, state))
    server = _ready(where, server, state)
    with client_of(server, where) as client:
        bucket = flags.text("staging_bucket")
        storage = state.storage_url() if server.local else ""
        job_dir = str(get(draft.data, "trainingInput.jobDir") or "")

        def directory(job_id: str) -> str:
            """Only called for a job that the server would take."""
            if storage and job_dir.startswith("gs://"):
                ensure_bucket(job_dir, storage, say)
            return _own_directory(state, job_id) if server.local and not job_dir else ""

        job = submission.submit(
            draft,
            client,
            upload=to_bucket(bucket, storage, say) if bucket else to_server(client),
            job_dir=directory,
            say=say,
        )
        return _after(client, job, output, stream_logs=stream_logs)


def validate(
    where: Where,
    output: Output,
    flags: JobFlags,
    *,
    name: str,
    config: Path | None,
    user_args: tuple[str, ...],
) -> None:
    """Everything that submit checks, here and at the server if one runs; then the gang is shown."""
    draft = submission.draft(config, flags, here=_here(), name=name, user_args=user_args)
    state = LocalState(where.state_dir)
    catalog = _catalog(find_server(where), state)
    job = submission.check_locally(draft, catalog)
    server = running_server(where)
    if server is not None:
        with client_of(server, where) as client, submission.in_users_terms(draft):
            client.validate_job(draft.named(draft.name or next(submission.job_names(draft))))
    groups = jobs.gang_of(job.training_input, catalog or _shown_catalog(server, state))
    if not output.for_people:
        click.echo(
            formats.render(output, {"trainingInput": job.canonical()["trainingInput"], "replicas": groups})
        )
        return
    checked = (
        f"the server at {server.url} would take it" if server else "checked here only, since no server runs"
    )
    click.echo(f"The job is valid ({checked}). Nothing was submitted.")
    if draft.package_path is not None:
        click.echo(f"It would package {draft.package_path}.")
    if groups:
        click.echo(f"\n{jobs.gang_text(groups)}")


def _after(client: Client, job: dict[str, Any], output: Output, *, stream_logs: bool) -> int:
    job_id = job["jobId"]
    say(f"Job [{job_id}] submitted successfully.")
    if not stream_logs:
        say(
            "Your job is still active. You may view the status of your job with the command\n\n"
            f"  $ jobs describe {job_id}\n\n"
            "or continue streaming the logs with the command\n\n"
            f"  $ jobs stream-logs {job_id}\n"
        )
    if output.for_people:
        click.echo(f"jobId: {job_id}\nstate: {job.get('state', 'QUEUED')}")
    else:
        click.echo(formats.render(output, job))
    if not stream_logs:
        return 0
    sys.stdout.flush()
    return stream(client, job_id, screen_for(sys.stderr, sys.stderr))


def _catalog(server: Server | None, state: LocalState) -> Catalog | None:
    """The machine types that the local server will start with; None for a server that runs, here or elsewhere:
    what it has loaded is its own business, and it is asked."""
    if server is not None and (not server.local or state.process("server")):
        return None
    site_file = state.options().machine_types
    return load_catalog(Path(site_file) if site_file else None)


def _shown_catalog(server: Server | None, state: LocalState) -> Catalog:
    """The best guess at the machine types of a server that runs. Only for showing; the server has checked."""
    process = state.process("server") if server is not None and server.local else None
    command = process.command if process else ()
    if "--machine-types" in command[:-1]:
        with suppress(InvalidArgument):
            return load_catalog(Path(command[command.index("--machine-types") + 1]))
    return load_catalog()


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise FailedPrecondition("The current directory was deleted; change to another one.") from None


def _ready(where: Where, server: Server | None, state: LocalState) -> Server:
    """The configured server, or the local one, started where it does not run."""
    if server is not None and not server.local:
        return server
    ensure_up(state, say)
    started = state.server()
    if started is None:
        raise Unavailable(f"The state directory {where.state_dir} was removed meanwhile.")
    return started


def _own_directory(state: LocalState, job_id: str) -> str:
    directory = state.jobs / job_id
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return str(directory)
