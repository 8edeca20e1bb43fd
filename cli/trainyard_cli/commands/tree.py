"""Command tree: every command with its flags, and the function that runs it.

Shell completion imports this module at each TAB, so a command imports what it needs when it runs. A command returns
None or its exit code.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.completion import job_names, task_names
from trainyard_cli.commands.options import (
    Duration,
    JobName,
    KeepJobs,
    WithUserArgs,
    follow_options,
    output_options,
    server_options,
    state_options,
)
from trainyard_cli.commands.suggestions import CommandGroup
from trainyard_cli.output.safe import echo
from trainyard_cli.settings import PULL_POLICIES, RUNTIMES, WAIT_STATES, Target
from trainyard_cli.submission.flags import CommaSeparated, JobFlags, KeyValues, job_flags, pop_flags

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_cli.output.formats import Output

NOT_HEALTHY = 3

_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}

job_argument = click.argument("job", type=JobName(), shell_complete=job_names)
jobs_argument = click.argument(
    "names", type=JobName(), shell_complete=job_names, nargs=-1, required=True, metavar="JOB..."
)
runtimes_option = click.option(
    "--runtimes",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with your own runtime versions and their images.",
)
config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The job's YAML or JSON file, or - for standard input. Flags override it.",
)


@click.group(cls=CommandGroup, context_settings=_CONTEXT)
@click.version_option(package_name="trainyard", message="trainyard %(version)s")
def trainyard() -> None:
    """Run AI Platform Training jobs on your own machines."""


@trainyard.group("jobs")
def jobs_group() -> None:
    """Submit and manage training jobs."""


@trainyard.command()
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
    python: Path | None,
    keep_jobs: str | None,
    keep_logs_gb: float | None,
) -> None:
    """Start the service on this machine, in the background. Running parts are left alone."""
    from trainyard_cli.commands import service

    given: dict[str, Any] = {
        "capacity": capacity,
        "cpus": cpus,
        "memory_gb": memory_gb,
        "machine_types": str(machine_types.absolute()) if machine_types else None,
        "quotas": str(quotas.absolute()) if quotas else None,
        "runtime": runtime,
        "runtimes": str(runtimes.absolute()) if runtimes else None,
        "pull": pull,
        "python": str(python.absolute()) if python else None,
        "keep_jobs": keep_jobs,
        "keep_logs_gb": keep_logs_gb,
    }
    service.up(state_dir, {name: value for name, value in given.items() if value is not None})


@trainyard.command()
@server_options
@click.option("--no-open", is_flag=True, help="Print the sign-in link instead of opening a browser.")
def dashboard(target: Target, no_open: bool) -> None:
    """Open the dashboard in a browser, signed in. Prints the link if there is no browser."""
    from trainyard_cli.commands.dashboard import show

    show(target, open_it=not no_open)


@trainyard.command()
@state_options
def down(state_dir: Path) -> None:
    """Stop the service on this machine and all its replicas."""
    from trainyard_cli.commands import service

    service.down(state_dir)


@trainyard.command()
@server_options
@output_options
def status(target: Target, output: "Output") -> int:
    """Show processes, health checks, agents and job counts. Exit code 3 if not healthy."""
    from trainyard_cli.commands import service

    return 0 if service.status(target, output) else NOT_HEALTHY


@trainyard.command()
@click.option("--fix", is_flag=True, help="Fix the problems that can be fixed safely.")
@server_options
@output_options
def doctor(target: Target, output: "Output", fix: bool) -> int:
    """Check this machine, the service and its jobs for problems. Exit code 3 if there are any."""
    from trainyard_cli.commands import doctor as checks

    return 0 if checks.run(target, output, fix) else NOT_HEALTHY


@trainyard.group("runtimes")
def runtimes_group() -> None:
    """List and build the container images of package jobs."""


@runtimes_group.command("list")
@runtimes_option
@output_options
def list_runtimes(runtimes: Path | None, output: "Output") -> None:
    """List the image of each runtime version, and whether this machine has it."""
    from trainyard_cli.commands import runtimes as runtime_commands

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
    from trainyard_cli.commands import runtimes as runtime_commands

    runtime_commands.build(names, runtimes, base_image, build_args, ca_bundle)


@trainyard.command("build")
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
    from trainyard_cli.commands.build import build as build_project

    build_project(directory, tag)


@trainyard.command("shell-init")
@click.argument("shell", required=False, type=click.Choice(["bash", "zsh", "fish", "dash", "sh"]))
def shell_init(shell: str | None) -> None:
    """Print shell code that defines `jobs`. Usage: eval "$(trainyard shell-init)"."""
    from trainyard_cli.commands.shell_init import guess_shell, script, this_program
    from trainyard_cli.settings import COMPLETION_VARIABLE

    verbs = [name for name, command in jobs_group.commands.items() if not command.hidden]
    echo(script(shell or guess_shell(), this_program(), verbs, COMPLETION_VARIABLE), nl=False)


@jobs_group.group()
def submit() -> None:
    """Submit a job."""


@submit.command("training", cls=WithUserArgs)
@click.argument("job", required=False)
@config_option
@job_flags
@click.option("--async", "asynchronous", is_flag=True, help="Return once the job is queued (the default).")
@click.option(
    "--stream-logs", is_flag=True, help="Show the log until the job ends, and exit with the job's exit code."
)
@click.option(
    "--if-not-exists",
    is_flag=True,
    help="Accept a job of this name that exists with the same content; with another one, show the differences.",
)
@follow_options
@server_options
@output_options
def submit_training(target: Target, output: "Output", **parameters: Any) -> int | None:
    """Submit a training job. Arguments after -- go to the training program.

    The default JOB is made from the name of the config and the time.
    """
    if parameters["asynchronous"] and parameters["stream_logs"]:
        raise click.UsageError("argument --async: At most one of --async | --stream-logs can be specified.")
    for flag in ("raw", "cancel_on_interrupt"):
        if parameters[flag] and not parameters["stream_logs"]:
            raise click.UsageError(f"argument --{flag.replace('_', '-')}: It needs --stream-logs.")
    flags = _checked(pop_flags(parameters))
    from trainyard_cli.commands import submit as job_commands

    return job_commands.submit(
        target,
        output,
        flags,
        name=parameters["job"] or "",
        config=parameters["config"],
        user_args=parameters["user_args"],
        words=parameters["words"],
        stream_logs=parameters["stream_logs"],
        if_not_exists=parameters["if_not_exists"],
        raw=parameters["raw"],
        cancel_on_interrupt=parameters["cancel_on_interrupt"],
    )


@jobs_group.command(cls=WithUserArgs)
@click.argument("job", required=False)
@config_option
@job_flags
@click.option("--fix", is_flag=True, help="First restore the indentation that the config has lost.")
@server_options
@output_options
def validate(target: Target, output: "Output", fix: bool, **parameters: Any) -> None:
    """Check a job and show its replicas, without submitting it.

    With --fix, a config from standard input is printed with its indentation, and not checked.
    """
    flags = _checked(pop_flags(parameters))
    from trainyard_cli.commands import submit as job_commands

    job_commands.validate(
        target,
        output,
        flags,
        name=parameters["job"] or "",
        config=parameters["config"],
        user_args=parameters["user_args"],
        words=parameters["words"],
        fix=fix,
    )


@jobs_group.command()
@job_argument
@click.option("--all", "everything", is_flag=True, help="Show runs, replicas and events, too.")
@server_options
@output_options
def describe(target: Target, output: "Output", job: str, everything: bool) -> None:
    """Show a job."""
    from trainyard_cli.commands import jobs

    with _connect(target) as client:
        echo(jobs.describe(client, job, output, everything=everything))


@jobs_group.command("list")
@click.option("--filter", "filter_", default="", help="Filter, such as: jobId:census* AND state:FAILED")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of jobs.")
@click.option("--sort-by", default="", metavar="KEY,~KEY", help="Sort by these keys; ~ means descending.")
@click.option("--uri", is_flag=True, help="Print only the jobs' URIs.")
@server_options
@output_options
def list_jobs(
    target: Target, output: "Output", filter_: str, limit: int | None, sort_by: str, uri: bool
) -> None:
    """List jobs."""
    from trainyard_cli.commands import jobs

    with _connect(target) as client:
        text = jobs.list_jobs(client, output, filter_=filter_, limit=limit, sort_by=sort_by, uri=uri)
    if text:
        echo(text)


@jobs_group.command()
@job_argument
@server_options
def cancel(target: Target, job: str) -> None:
    """Cancel a job. Prints nothing on success."""
    with _connect(target) as client:
        client.cancel_job(job)


@jobs_group.command()
@jobs_argument
@click.option("--yes", "--quiet", "confirmed", is_flag=True, help="Do not ask.")
@server_options
def delete(target: Target, names: tuple[str, ...], confirmed: bool) -> None:
    """Delete jobs that have ended: record, log, curves, resource usage. Asks before.

    The local service's own directory of a job goes with it; a --job-dir, also on gs://, stays. A name is never used
    again.
    """
    from trainyard_cli.commands import delete as removal
    from trainyard_cli.local.state import LocalState

    with _connect(target) as client:
        removal.delete(client, names, LocalState(target.state_dir), confirmed=confirmed)


@jobs_group.command("stream-logs")
@job_argument
@click.option(
    "--task",
    "--task-name",
    default="",
    shell_complete=task_names,
    help="Only lines of this replica, such as worker-0.",
)
@click.option(
    "--severity",
    default="",
    metavar="LEVEL",
    help="Only lines of this severity or higher: DEBUG, INFO, NOTICE, WARNING, ERROR or CRITICAL.",
)
@click.option(
    "--since",
    default="",
    metavar="WHEN",
    help="Only lines since then: 10m, 2h or 1d ago, or an RFC 3339 time.",
)
@click.option("--search", default="", metavar="TEXT", help="Only lines with this text, ignoring case.")
@click.option("--follow/--no-follow", default=True, help="Wait for new lines.  [default: follow]")
@follow_options
@server_options
@output_options
def stream_logs(
    target: Target,
    output: "Output",
    job: str,
    task: str,
    severity: str,
    since: str,
    search: str,
    follow: bool,
    raw: bool,
    cancel_on_interrupt: bool,
) -> int:
    """Show a job's log until the job ends, and exit with the job's exit code.

    On a terminal the steps and metrics are one live line, with a line for each epoch and evaluation.
    """
    from trainyard_cli.commands import jobs
    from trainyard_cli.output.follow import stream
    from trainyard_cli.output.screens import screen_for

    query = jobs.log_query(task, severity, since, search)
    with _connect(target) as client:
        raw = raw or bool(search)  # what was searched for is shown, also in lines of progress
        screen = screen_for(sys.stdout, sys.stderr, as_json=output.kind == "json", raw=raw)
        return stream(
            client, job, screen, query=query, follow=follow, cancel_on_interrupt=cancel_on_interrupt
        )


@jobs_group.command()
@click.option("--once", is_flag=True, help="Print the table once, as into a pipe.")
@server_options
@output_options
def top(target: Target, output: "Output", once: bool) -> None:
    """Show all active jobs and what they do, live; q quits.

    Jobs of all projects: step, main metric, speed, time left, CPU and memory in use; for a queued one why it waits.
    """
    from trainyard_cli.commands import top as page

    with _connect(target) as client:
        page.top(client, output, once=once)


@jobs_group.command()
@jobs_argument
@click.option(
    "--timeout",
    type=Duration(),
    help="Stop waiting after 90s, 10m, 2h, ..., with exit code 124.  [default: no limit]",
)
@click.option(
    "--for-state",
    type=click.Choice(WAIT_STATES, case_sensitive=False),
    help="Wait until each job has reached this state.  [default: until it has ended]",
)
@server_options
@output_options
def wait(
    target: Target, output: "Output", names: tuple[str, ...], timeout: float | None, for_state: str | None
) -> int:
    """Wait for jobs to end, without their logs. Exits with the exit code of the job, as stream-logs does.

    With several jobs: 0 if all succeeded, else the exit code of the first in the given order that did not. With
    --for-state: 0 if all have reached it, and not 0 once one of them no longer can. 124 if the time was over first.
    """
    from trainyard_cli.local.connect import notify
    from trainyard_cli.output import formats
    from trainyard_cli.output import wait as waiting
    from trainyard_protocol.states import JobState

    wanted = JobState(for_state) if for_state else None
    with _connect(target) as client:
        result = waiting.wait(client, names, notify, target=wanted, timeout_s=timeout)
    if not output.for_people:
        echo(formats.render(output, [detail.job for detail in result.jobs]))
    return result.code


@jobs_group.command()
@job_argument
@click.option("--update-labels", type=KeyValues(), multiple=True, help="Set these labels.")
@click.option(
    "--remove-labels", type=CommaSeparated(), multiple=True, metavar="KEY,...", help="Remove these labels."
)
@click.option("--clear-labels", is_flag=True, help="Remove all labels, before --update-labels.")
@server_options
@output_options
def update(target: Target, output: "Output", job: str, **parameters: Any) -> None:
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
    from trainyard_cli.output import formats

    with _connect(target) as client:
        updated = jobs.update_labels(client, job, update=changes, remove=remove, clear=clear)
    if output.for_people:
        echo(f"Updated job [{job}].", err=True)
    else:
        echo(formats.render(output, updated))


@jobs_group.command()
@job_argument
@click.option(
    "--name", "names", multiple=True, metavar="METRIC", help="Only this metric. May be given several times."
)
@click.option("--task", "--task-name", default="", shell_complete=task_names, help="Only of this replica.")
@click.option("--curves", is_flag=True, help="With -o json: also every curve as steps, values and times.")
@click.option(
    "--points", type=click.IntRange(10, 10_000), default=1000, help="Points of each curve.  [default: 1000]"
)
@server_options
@output_options
def metrics(target: Target, output: "Output", job: str, **parameters: Any) -> None:
    """Show the metrics of a job: the last value of each, its minimum and its maximum."""
    from trainyard_cli.commands import jobs
    from trainyard_cli.local.connect import notify
    from trainyard_cli.output import formats

    task = jobs.task_name(parameters["task"]) if parameters["task"] else ""
    with _connect(target) as client:
        view = client.metrics(job, names=parameters["names"], task=task, points=parameters["points"])
    rows = jobs.metrics_rows(view, curves=parameters["curves"])
    if not output.for_people:
        echo(formats.render(output, rows))
    elif rows:
        echo(jobs.metrics_text(rows))
    else:
        notify("The job has no such metrics so far.")


@jobs_group.command()
@job_argument
@server_options
@output_options
def why(target: Target, output: "Output", job: str) -> None:
    """Show why a job is queued and what would start it.

    Lists the jobs that hold what it needs, and the smallest changes that would start it now.
    """
    from trainyard_cli.output import formats
    from trainyard_cli.output import queue_explanation as reasons

    with _connect(target) as client:
        view = client.why(job)
    if output.for_people:
        echo(reasons.text(view, client.project, datetime.now(UTC)))
    else:
        echo(formats.render(output, view.model_dump(mode="json", exclude_none=True)))


@jobs_group.command()
@job_argument
@click.argument("replica", default="master-replica-0", shell_complete=task_names)
@click.option("--run", type=click.IntRange(1), help="Number of the run.  [default: the latest]")
@server_options
@output_options
def explain(target: Target, output: "Output", job: str, replica: str, run: int | None) -> None:
    """Show a replica's environment and the command to run it by hand."""
    from trainyard_cli.commands import jobs
    from trainyard_cli.local.state import LocalState
    from trainyard_cli.output import formats

    with _connect(target) as client:
        explanation = client.explain(job, jobs.task_name(replica), run)
        if client.server.local:
            explanation = jobs.with_storage(explanation, LocalState(target.state_dir).storage_url())
    if output.for_people:
        echo(jobs.explanation_text(explanation))
    else:
        echo(formats.render(output, explanation.model_dump(mode="json")))


@jobs_group.command()
@job_argument
@click.option(
    "--host", default="127.0.0.1", help="Address that TensorBoard listens on.  [default: 127.0.0.1]"
)
@click.option(
    "--port", type=click.IntRange(1, 2**16 - 1), help="[default: the first free port from 6006 upwards]"
)
@server_options
def tensorboard(target: Target, job: str, host: str, port: int | None) -> int:
    """Run TensorBoard on this machine for a job, until Ctrl-C.

    Shows the event files in the job's jobDir, while the job runs and after it.
    """
    from trainyard_cli.local.state import LocalState
    from trainyard_cli.tensorboard import server as curves

    with _connect(target) as client:
        detail = client.detail(job)
        emulator = LocalState(target.state_dir).storage_url() if client.server.local else ""
    return curves.show(detail, emulator, host=host, port=port)


def _connect(target: Target) -> "Client":
    from trainyard_cli.local.connect import connect

    return connect(target)


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.isidentifier() and equals):
        raise click.BadParameter(f"must look like NAME=VALUE, not {text!r}.")
    return name, value


def _checked(flags: JobFlags) -> JobFlags:
    """Validate --staging-bucket. Raises a usage error."""
    bucket = flags.text("staging_bucket")
    name = bucket.removeprefix("gs://").rstrip("/")
    if bucket and (not name or "/" in name or not bucket.startswith("gs://")):
        raise click.UsageError(f"argument --staging-bucket: Must be of form gs://BUCKET; this is {bucket!r}.")
    return flags
