"""`jobs stream-logs` and `jobs wait`: a job is followed to its end, with its lines or without."""

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from trainyard_cli.commands.service.completion import task_names
from trainyard_cli.commands.shared.gcloud_flags import gcloud_wide_flags, log_flags
from trainyard_cli.commands.shared.options import (
    as_wrong_usage,
    connected,
    follow_options,
    job_argument,
    jobs_argument,
    output_options,
    server_options,
)
from trainyard_cli.local.connect import connect, notify
from trainyard_cli.local.options import Duration
from trainyard_cli.output.jobs import formats
from trainyard_cli.output.jobs.formats import Output
from trainyard_cli.settings import WAIT_STATES, Target
from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.lines.severity import SEVERITIES
from trainyard_protocol.lines.time_parsing import parse_time
from trainyard_protocol.states import JobState

if TYPE_CHECKING:
    from trainyard_cli.client import Client, LogQuery


@click.command()
@job_argument
@click.option(
    "--task", "--task-name", default="", shell_complete=task_names, help="Only lines of this replica, such as worker-0."
)
@click.option(
    "--severity",
    default="",
    metavar="LEVEL",
    help="Only lines of this severity or higher: DEBUG, INFO, NOTICE, WARNING, ERROR or CRITICAL.",
)
@click.option(
    "--since", default="", metavar="WHEN", help="Only lines since then: 10m, 2h or 1d ago, or an RFC 3339 time."
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
    output: Output,
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
    from trainyard_cli.output.log.follow import stream
    from trainyard_cli.output.log.terminal_screen import screen_for

    with as_wrong_usage():
        query = log_query(task, severity, since, search)
    with connect(target) as client:
        raw = raw or bool(search)  # what was searched for is shown, also in lines of progress
        screen = screen_for(sys.stdout, sys.stderr, as_json=output.kind == "json", raw=raw)
        return stream(client, job, screen, query=query, follow=follow, cancel_on_interrupt=cancel_on_interrupt)


@click.command()
@jobs_argument
@click.option(
    "--timeout", type=Duration(), help="Stop waiting after 90s, 10m, 2h, ..., with exit code 124.  [default: no limit]"
)
@click.option(
    "--for-state",
    type=click.Choice(WAIT_STATES, case_sensitive=False),
    help="Wait until each job has reached this state.  [default: until it has ended]",
)
@click.option("--all", "with_followers", is_flag=True, help="Wait for the jobs that start after these as well.")
@connected
@output_options
def wait(
    client: "Client",
    output: Output,
    names: tuple[str, ...],
    timeout: float | None,
    for_state: str | None,
    with_followers: bool,
) -> int:
    """Wait for jobs to end, without their logs. Exits with the exit code of the job, as stream-logs does.

    With several jobs: 0 if all succeeded, else the exit code of the first in the given order that did not. With
    --for-state: 0 if all have reached it, and not 0 once one of them no longer can. 124 if the time was over first.
    """
    from trainyard_cli.output.log import wait as waiting

    state = JobState(for_state) if for_state else None
    if with_followers:
        names = waiting.with_followers(names, client.dependencies)
    result = waiting.wait(client, names, notify, target=state, timeout_s=timeout)
    formats.printed(output, [detail.job for detail in result.jobs])
    return result.code


def log_query(task: str, severity: str, since: str, search: str) -> "LogQuery":
    """Build the filter of stream-logs. Relative times are resolved once, so that reconnections do not move them.

    Raises InvalidArgument with every violation."""
    from trainyard_cli.client import LogQuery
    from trainyard_protocol.fields import rfc3339

    violations = []
    if severity and severity.upper() not in SEVERITIES:
        violations.append(Violation("", f"--severity must be one of {', '.join(SEVERITIES)}, not {severity!r}."))
    start = ""
    try:
        start = rfc3339(parse_time(since, datetime.now(UTC))) if since else ""
    except ValueError as error:
        violations.append(Violation("", f"--since {error}."))
    if violations:
        raise InvalidArgument(violations)
    return LogQuery(task_name(task) if task else "", severity.upper(), start, search)


def task_name(replica: str) -> str:
    """`worker-replica-0`, also from `worker 0`, `worker-0` or `chief`. Raises InvalidArgument."""
    match = re.fullmatch(r"(chief|master|worker|ps|evaluator)(?:-replica)?(?:[- ](\d+))?", replica.strip())
    if match is None:
        raise InvalidArgument(f"{replica!r} is not a replica name such as worker-replica-0.")
    kind = "master" if match[1] == "chief" else match[1]
    return f"{kind}-replica-{match[2] or 0}"
