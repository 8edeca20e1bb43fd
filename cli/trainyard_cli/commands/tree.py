"""The tree of commands: what can be typed, and which function does it.

The shell starts us at each TAB, so nothing heavy is imported here: a command imports what it needs when it runs.
Every command returns None or its exit code.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.completion import job_names, task_names
from trainyard_cli.commands.options import (
    JobName,
    WithUserArgs,
    output_options,
    server_options,
    state_options,
)
from trainyard_cli.settings import PULL_POLICIES, RUNTIMES, Where
from trainyard_cli.submission.flags import JobFlags, KeyValues, Words, job_flags, take_flags

if TYPE_CHECKING:
    from trainyard_cli.output.formats import Output

NOT_HEALTHY = 3

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

job_argument = click.argument("job", type=JobName(), shell_complete=job_names)
runtimes_option = click.option(
    "--runtimes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with images for runtime versions of your own.",
)
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The job's YAML or JSON file, or - for standard input; flags override it.",
)


@click.group(context_settings=_CONTEXT)
@click.version_option(package_name="trainyard", message="trainyard %(version)s")
def trainyard() -> None:
    """AI Platform Training jobs on your own machines."""


@trainyard.group("jobs")
def jobs_group() -> None:
    """Submit jobs, look at them, end them."""


@trainyard.command()
@state_options
@click.option(
    "--capacity",
    type=click.Choice(["fit", "strict"]),
    help="fit: scale a job down that is larger than this machine; strict: let it wait.  [default: fit]",
)
@click.option("--cpus", metavar="0,1,...", help="CPUs that jobs may use.  [default: all]")
@click.option("--memory-gb", type=click.FloatRange(min=0, min_open=True), help="Memory that jobs may use.")
@click.option(
    "--machine-types",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with machine types of your own.",
)
@click.option(
    "--quotas",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with what each project may use at the same time.",
)
@click.option(
    "--runtime",
    type=click.Choice(RUNTIMES),
    help="What replicas are. auto: containers where a Docker engine answers and `trainyard runtimes build` "
    "has made the image of package jobs, else processes.  [default: auto]",
)
@runtimes_option
@click.option(
    "--pull",
    type=click.Choice(PULL_POLICIES),
    help="When the image of a job is pulled.  [default: missing]",
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
) -> None:
    """Start the service on this machine, in the background. What runs already is left alone."""
    from trainyard_cli.commands import service as local_commands

    given: dict[str, Any] = {
        "capacity": capacity,
        "cpus": cpus,
        "memory_gb": memory_gb,
        "machine_types": str(machine_types.absolute()) if machine_types else None,
        "quotas": str(quotas.absolute()) if quotas else None,
        "runtime": runtime,
        "runtimes": str(runtimes.absolute()) if runtimes else None,
        "pull": pull,
    }
    local_commands.up(state_dir, {name: value for name, value in given.items() if value is not None})


@trainyard.command()
@server_options
@click.option("--no-open", is_flag=True, help="Print the link, and open no browser.")
def dashboard(where: Where, no_open: bool) -> None:
    """Open the dashboard in the browser, signed in. Without a browser here it prints the link."""
    from trainyard_cli.commands.dashboard import show

    show(where, open_it=not no_open)


@trainyard.command()
@state_options
def down(state_dir: Path) -> None:
    """Stop the service on this machine, and every replica with it."""
    from trainyard_cli.commands import service as local_commands

    local_commands.down(state_dir)


@trainyard.command()
@server_options
@output_options
def status(where: Where, output: "Output") -> int:
    """What runs, what it has and what it does. Exit code 3 if something is missing."""
    from trainyard_cli.commands import service as local_commands

    return 0 if local_commands.status(where, output) else NOT_HEALTHY


@trainyard.command()
@click.option("--fix", is_flag=True, help="Mend what can be mended safely, and say so.")
@server_options
@output_options
def doctor(where: Where, output: "Output", fix: bool) -> int:
    """Look for what is wrong: on this machine, with the service and its jobs. Exit code 3 if something is."""
    from trainyard_cli.commands import doctor as checks

    return 0 if checks.run(where, output, fix) else NOT_HEALTHY


@trainyard.group("runtimes")
def runtimes_group() -> None:
    """The container images that package jobs run in."""


@runtimes_group.command("list")
@runtimes_option
@output_options
def list_runtimes(runtimes: Path | None, output: "Output") -> None:
    """Show which image a job of each runtime version runs in, and which of them are on this machine."""
    from trainyard_cli.commands import runtimes as runtime_commands

    runtime_commands.list_runtimes(runtimes, output)


@runtimes_group.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--base-image",
    default="",
    metavar="IMAGE",
    help="Build on this image, which has Python 3.11 or later.  [default: the table's]",
)
@runtimes_option
@click.option(
    "--build-arg",
    "build_args",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _context, _option, words: dict(map(_assignment, words)),
    help="For the Dockerfile, such as PIP_INDEX_URL=... for a mirror; proxies are taken from the environment.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificates (PEM) that the build trusts, such as a proxy's. They do not stay in the image.",
)
def build(
    names: tuple[str, ...],
    base_image: str,
    runtimes: Path | None,
    build_args: dict[str, str],
    ca_bundle: Path | None,
) -> None:
    """Build images of runtimes on this machine's container engine (DOCKER_HOST names another).

    Without a NAME: those of replicas without GPUs.
    """
    from trainyard_cli.commands import runtimes as runtime_commands

    runtime_commands.build(names, runtimes, base_image, build_args, ca_bundle)


@trainyard.command("shell-init")
@click.argument("shell", required=False, type=click.Choice(["bash", "zsh", "fish", "dash", "sh"]))
def shell_init(shell: str | None) -> None:
    """Print what makes `jobs submit ...` work in your shell: eval "$(trainyard shell-init)"."""
    from trainyard_cli.commands.shell_init import guess_shell, script, this_program
    from trainyard_cli.main import COMPLETION_VARIABLE

    verbs = [name for name, command in jobs_group.commands.items() if not command.hidden]
    click.echo(script(shell or guess_shell(), this_program(), verbs, COMPLETION_VARIABLE), nl=False)


@jobs_group.group()
def submit() -> None:
    """Submit a job."""


@submit.command("training", cls=WithUserArgs)
@click.argument("job", required=False)
@config_option
@job_flags
@click.option("--async", "asynchronous", is_flag=True, help="Return at once (the default).")
@click.option("--stream-logs", is_flag=True, help="Show the log until the job ends; exit with its code.")
@server_options
@output_options
def submit_training(where: Where, output: "Output", **parameters: Any) -> int | None:
    """Submit a training job. Words after -- are the program's own.

    A job without a name is named from its config and the time.
    """
    if parameters["asynchronous"] and parameters["stream_logs"]:
        raise click.UsageError("argument --async: At most one of --async | --stream-logs can be specified.")
    flags = _checked(take_flags(parameters))
    from trainyard_cli.commands import submit as job_commands

    return job_commands.submit(
        where,
        output,
        flags,
        name=parameters["job"] or "",
        config=parameters["config"],
        user_args=parameters["user_args"],
        stream_logs=parameters["stream_logs"],
    )


@jobs_group.command(cls=WithUserArgs)
@click.argument("job", required=False)
@config_option
@job_flags
@server_options
@output_options
def validate(where: Where, output: "Output", **parameters: Any) -> None:
    """Check a job as submit would and show its replicas. Nothing is submitted."""
    flags = _checked(take_flags(parameters))
    from trainyard_cli.commands import submit as job_commands

    job_commands.validate(
        where,
        output,
        flags,
        name=parameters["job"] or "",
        config=parameters["config"],
        user_args=parameters["user_args"],
    )


@jobs_group.command()
@job_argument
@click.option("--all", "everything", is_flag=True, help="Runs, replicas and events, too.")
@server_options
@output_options
def describe(where: Where, output: "Output", job: str, everything: bool) -> None:
    """Show one job."""
    from trainyard_cli.commands import jobs
    from trainyard_cli.local import connect

    with connect.connect(where) as client:
        click.echo(jobs.describe(client, job, output, connect.say, everything=everything))


@jobs_group.command("list")
@click.option("--filter", "filter_", default="", help="Such as: jobId:census* AND state:FAILED")
@click.option("--limit", type=click.IntRange(1), help="At most so many jobs.")
@click.option("--sort-by", default="", metavar="KEY,~KEY", help="Sort by these keys; ~ is descending.")
@click.option("--uri", is_flag=True, help="Print addresses only.")
@server_options
@output_options
def list_jobs(
    where: Where, output: "Output", filter_: str, limit: int | None, sort_by: str, uri: bool
) -> None:
    """List jobs."""
    from trainyard_cli.commands import jobs
    from trainyard_cli.local import connect

    with connect.connect(where) as client:
        text = jobs.list_jobs(
            client, output, connect.say, filter_=filter_, limit=limit, sort_by=sort_by, uri=uri
        )
    if text:
        click.echo(text)


@jobs_group.command()
@job_argument
@server_options
def cancel(where: Where, job: str) -> None:
    """End a job. Silent when that was accepted."""
    from trainyard_cli.local import connect

    with connect.connect(where) as client:
        client.cancel_job(job)


@jobs_group.command("stream-logs")
@job_argument
@click.option(
    "--task",
    "--task-name",
    default="",
    shell_complete=task_names,
    help="Only the lines of this replica, such as worker-0.",
)
@click.option(
    "--severity",
    default="",
    metavar="LEVEL",
    help="Only lines of at least this severity: DEBUG, INFO, NOTICE, WARNING, ERROR or CRITICAL.",
)
@click.option(
    "--since",
    default="",
    metavar="WHEN",
    help="Only lines from then on: 10m, 2h or 1d ago, or an RFC 3339 time.",
)
@click.option("--search", default="", metavar="TEXT", help="Only lines with this text, in whatever case.")
@click.option("--follow/--no-follow", default=True, help="Wait for what is still to come.  [default: follow]")
@server_options
@output_options
def stream_logs(
    where: Where,
    output: "Output",
    job: str,
    task: str,
    severity: str,
    since: str,
    search: str,
    follow: bool,
) -> int:
    """Show a job's log until the job ends; exit with its code."""
    from trainyard_cli.commands import jobs
    from trainyard_cli.local import connect
    from trainyard_cli.output.follow import stream
    from trainyard_cli.output.log_screen import screen_for

    wanted = jobs.log_query(task, severity, since, search)
    with connect.connect(where) as client:
        screen = screen_for(sys.stdout, sys.stderr, as_json=output.kind == "json")
        return stream(client, job, screen, wanted=wanted, follow=follow)


@jobs_group.command()
@job_argument
@click.option("--update-labels", type=KeyValues(), multiple=True, help="Set these labels.")
@click.option("--remove-labels", type=Words(), multiple=True, metavar="KEY,...", help="Remove these labels.")
@click.option("--clear-labels", is_flag=True, help="Remove all labels (then set --update-labels).")
@server_options
@output_options
def update(where: Where, output: "Output", job: str, **parameters: Any) -> None:
    """Change a job's labels."""
    changes = {key: value for pairs in parameters["update_labels"] for key, value in pairs.items()}
    remove = [key for words in parameters["remove_labels"] for key in words]
    clear = parameters["clear_labels"]
    if clear and remove:
        raise click.UsageError(
            "argument --clear-labels: At most one of --clear-labels | --remove-labels can be specified."
        )
    if not (changes or remove or clear):
        raise click.UsageError(
            "At least one of --clear-labels | --remove-labels | --update-labels must be specified."
        )
    from trainyard_cli.commands import jobs
    from trainyard_cli.local import connect
    from trainyard_cli.output import formats

    with connect.connect(where) as client:
        updated = jobs.update_labels(client, job, update=changes, remove=remove, clear=clear)
    if output.for_people:
        connect.say(f"Updated job [{job}].")
    else:
        click.echo(formats.render(output, updated))


@jobs_group.command()
@job_argument
@server_options
@output_options
def why(where: Where, output: "Output", job: str) -> None:
    """Say why a job waits, who holds what it needs, and the smallest change that would start it."""
    from trainyard_cli.local import connect
    from trainyard_cli.output import formats
    from trainyard_cli.output import queue_explanation as reasons

    with connect.connect(where) as client:
        view = client.why(job)
    if output.for_people:
        click.echo(reasons.text(view, client.project, datetime.now(UTC)))
    else:
        click.echo(formats.render(output, view.model_dump(mode="json", exclude_none=True)))


@jobs_group.command()
@job_argument
@click.argument("replica", default="master-replica-0", shell_complete=task_names)
@click.option("--run", type=click.IntRange(1), help="Which run.  [default: the latest]")
@server_options
@output_options
def explain(where: Where, output: "Output", job: str, replica: str, run: int | None) -> None:
    """Show what a replica sees, and the command that starts the same by hand."""
    from trainyard_cli.commands import jobs
    from trainyard_cli.local import connect
    from trainyard_cli.output import formats

    with connect.connect(where) as client:
        explanation = client.explain(job, jobs.task_name(replica), run)
    if output.for_people:
        click.echo(jobs.explanation_text(explanation))
    else:
        click.echo(formats.render(output, explanation.model_dump(mode="json")))


@jobs_group.command()
@job_argument
@click.option("--host", default="127.0.0.1", help="Where TensorBoard listens.  [default: 127.0.0.1]")
@click.option(
    "--port", type=click.IntRange(1, 2**16 - 1), help="[default: the first free one from 6006 upwards]"
)
@server_options
def tensorboard(where: Where, job: str, host: str, port: int | None) -> int:
    """Show a job's curves in TensorBoard, on this machine, until Ctrl-C.

    The event files are those below the job's jobDir, whatever the state of the job.
    """
    from trainyard_cli.local import connect
    from trainyard_cli.local.state import LocalState
    from trainyard_cli.tensorboard import server as curves

    with connect.connect(where) as client:
        detail = client.detail(job)
        emulator = LocalState(where.state_dir).storage_url() if client.server.local else ""
    return curves.show(detail, emulator, host=host, port=port, say=connect.say)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise click.BadParameter(f"must look like NAME=VALUE; this is {text!r}.")
    return name, value


def _checked(flags: JobFlags) -> JobFlags:
    """Raises a usage error for what can be told from the flags alone."""
    bucket = flags.text("staging_bucket")
    name = bucket.removeprefix("gs://").rstrip("/")
    if bucket and (not name or "/" in name or not bucket.startswith("gs://")):
        raise click.UsageError(f"argument --staging-bucket: Must be of form gs://BUCKET; this is {bucket!r}.")
    return flags
