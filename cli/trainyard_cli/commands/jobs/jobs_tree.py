"""Commands of `jobs`, on jobs that there are. Part of the command tree."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from trainyard_cli.commands.jobs.submit_tree import submit_group, validate
from trainyard_cli.commands.service.completion import job_names, task_names
from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags, list_flags, log_flags
from trainyard_cli.commands.shared.options import (
    Duration,
    JobName,
    follow_options,
    output_options,
    server_options,
)
from trainyard_cli.commands.shared.suggestions import CommandGroup
from trainyard_cli.output.text.safe import echo
from trainyard_cli.settings import WAIT_STATES, Target
from trainyard_cli.submission.flags import CommaSeparated, KeyValues

if TYPE_CHECKING:
    from trainyard_cli.client import Client
    from trainyard_cli.output.jobs.formats import Output

job_argument = click.argument("job", type=JobName(), shell_complete=job_names)
jobs_argument = click.argument(
    "names", type=JobName(), shell_complete=job_names, nargs=-1, required=True, metavar="JOB..."
)


@click.group("jobs", cls=CommandGroup)
def jobs_group() -> None:
    """Submit and manage training jobs."""


jobs_group.add_command(submit_group)
jobs_group.add_command(validate)


@jobs_group.command()
@job_argument
@click.option("--all", "everything", is_flag=True, help="Show runs, replicas and events, too.")
@click.option("--summarize", is_flag=True, help="Show the summary alone, without the job as YAML.")
@gcloud_wide_flags
@server_options
@output_options
def describe(target: Target, output: "Output", job: str, everything: bool, summarize: bool) -> None:
    """Show a job."""
    if summarize and not output.for_people:
        raise click.UsageError("argument --summarize: It has a form of its own, without --format.")
    from trainyard_cli.commands.jobs import jobs

    with _connect(target) as client:
        text = jobs.describe(client, job, output, everything=everything, summary_only=summarize)
    echo(text)


@jobs_group.command("list")
@click.option("--filter", "filter_", default="", help="Filter, such as: jobId:census* AND state:FAILED")
@click.option("--limit", type=click.IntRange(1), help="Maximum number of jobs.")
@click.option("--sort-by", default="", metavar="KEY,~KEY", help="Sort by these keys; ~ means descending.")
@click.option("--uri", is_flag=True, help="Print only the jobs' URIs.")
@list_flags
@gcloud_wide_flags
@server_options
@output_options
def list_jobs(
    target: Target, output: "Output", filter_: str, limit: int | None, sort_by: str, uri: bool
) -> None:
    """List jobs."""
    from trainyard_cli.commands.shared import listing
    from trainyard_cli.local.connect import connect_v1

    with connect_v1(target) as client:
        text = listing.list_jobs(client, output, filter_=filter_, limit=limit, sort_by=sort_by, uri=uri)
    if text:
        echo(text)


@jobs_group.command()
@job_argument
@gcloud_wide_flags
@server_options
def cancel(target: Target, job: str) -> None:
    """Cancel a job. Prints nothing on success."""
    with _connect(target) as client:
        client.cancel_job(job)


@jobs_group.command()
@click.argument("names", type=JobName(), shell_complete=job_names, nargs=-1, metavar="[JOB...]")
@click.option(
    "--filter",
    "filter_",
    default="",
    help="The jobs that match and have ended, as in jobs list: createTime<2026-01-01 AND labels.team=vision",
)
@click.option("--yes", "--quiet", "confirmed", is_flag=True, help="Do not ask.")
@server_options
def delete(target: Target, names: tuple[str, ...], filter_: str, confirmed: bool) -> None:
    """Delete jobs that have ended: record, log, curves, resource usage. Asks before.

    The local service's own directory of a job goes with it; a --job-dir, also on gs://, stays. A name is never used
    again.
    """
    if bool(names) == bool(filter_.strip()):
        raise click.UsageError("Name jobs, or give --filter: exactly one of JOB... | --filter must be given.")
    from trainyard_cli.commands.jobs import delete as removal
    from trainyard_cli.local.state import LocalState

    with _connect(target) as client:
        if chosen := names or removal.ended_jobs(client, filter_):
            removal.delete(client, chosen, LocalState(target.state_dir), confirmed=confirmed)


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
@log_flags
@gcloud_wide_flags
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
    from trainyard_cli.commands.jobs import jobs
    from trainyard_cli.output.log.follow import stream
    from trainyard_cli.output.log.screens import screen_for

    with _as_wrong_usage():
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

    Jobs of all projects that you have a role in: step, main metric, speed, time left, CPU and memory in use; for a
    queued one why it waits.
    """
    from trainyard_cli.commands.jobs import top as page

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
    from trainyard_cli.output.jobs import formats
    from trainyard_cli.output.log import wait as waiting
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
@gcloud_wide_flags
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
    from trainyard_cli.commands.jobs import jobs
    from trainyard_cli.output.jobs import formats

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
    from trainyard_cli.commands.jobs import jobs
    from trainyard_cli.local.connect import notify
    from trainyard_cli.output.jobs import formats

    with _as_wrong_usage():
        task = jobs.task_name(parameters["task"]) if parameters["task"] else ""
    with _connect(target) as client:
        view = client.metrics(job, names=parameters["names"], task=task, points=parameters["points"])
        if output.for_people and not view.metrics:
            notify(jobs.no_metrics(client.metrics(job, points=jobs.FEWEST_POINTS)))
    rows = jobs.metrics_rows(view, curves=parameters["curves"])
    if not output.for_people:
        echo(formats.render(output, rows))
    elif rows:
        echo(jobs.metrics_text(rows))


@jobs_group.command()
@job_argument
@click.option(
    "--metric", default="", help="Rank them by this metric that they reported.  [default: the study's]"
)
@click.option(
    "--goal",
    type=click.Choice(("maximize", "minimize"), case_sensitive=False),
    default=None,
    help="Whether that metric is to be large or small.  [default: as its name says]",
)
@server_options
@output_options
def trials(target: Target, output: "Output", job: str, metric: str, goal: str | None) -> None:
    """Show the trials of a study, best first: state, metric, hyperparameters and times.

    Everything about one of them: jobs describe JOB/7, jobs stream-logs JOB/7.
    """
    from trainyard_cli.commands.jobs import trials as trial_commands

    with _connect(target) as client:
        text = trial_commands.trials(client, job, output, metric, goal or "")
    if text:
        echo(text)


@jobs_group.command()
@job_argument
@server_options
@output_options
def why(target: Target, output: "Output", job: str) -> None:
    """Show why a job is queued and what would start it.

    Lists the jobs that hold what it needs, and the smallest changes that would start it now.
    """
    from trainyard_cli.output.jobs import formats
    from trainyard_cli.output.jobs import queue_explanation as reasons

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
    from trainyard_cli.commands.jobs import jobs
    from trainyard_cli.local.state import LocalState
    from trainyard_cli.output.jobs import formats

    with _as_wrong_usage():
        task = jobs.task_name(replica)
    with _connect(target) as client:
        explanation = client.explain(job, task, run)
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


@contextmanager
def _as_wrong_usage() -> Iterator[None]:
    """The refusal of a flag's value is a usage error, whoever checks it."""
    from trainyard_protocol.errors import InvalidArgument

    try:
        yield
    except InvalidArgument as error:
        raise click.UsageError(error.message) from error
