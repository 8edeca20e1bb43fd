"""Follows a job to its end: its log, each line once, then the verdict and the exit code."""

import signal
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType

from trainyard_cli.client import ALL_LINES, Client, LogQuery, StreamLost, StreamResumed
from trainyard_cli.output.jobs import formats, study_status
from trainyard_cli.output.log.interrupt import CancelOnInterrupt
from trainyard_cli.output.log.log_screen import Screen, elapsed, parse_rfc3339
from trainyard_cli.output.log.next_command import next_command
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.answers.log_views import LogSummary
from trainyard_protocol.errors import NotFound
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_protocol.wire.logs import LogDigest

INTERRUPTED = 130
TAIL_LINES = 10


def stream(
    client: Client,
    job: str,
    screen: Screen,
    *,
    query: LogQuery = ALL_LINES,
    follow: bool = True,
    cancel_on_interrupt: bool = False,
) -> int:
    """Show the job's log until the job has ended; without `follow`, the lines so far.

    Returns the job's exit code (0 if it has none yet), or 130 after Ctrl-C, which leaves the job running. With
    `cancel_on_interrupt` the first Ctrl-C cancels it, and its end is shown. Raises NotFound if the job has no such
    task. Missing or damaged lines are warnings and do not change the exit code."""
    if not cancel_on_interrupt:
        return _stream(client, job, screen, query, follow, lambda: resume_hint(job, client.flags))
    with CancelOnInterrupt(job, client.another, screen.note) as interrupt:
        return _stream(client, job, screen, query, follow, lambda: cancel_hint(job, interrupt.cancelled, client.flags))


def _stream(client: Client, job: str, screen: Screen, query: LogQuery, follow: bool, hint: Callable[[], str]) -> int:
    """`hint` is the message after Ctrl-C."""
    received: defaultdict[str, LogDigest] = defaultdict(lambda: LogDigest(chain=None))
    task = query.task
    tails: defaultdict[str, deque[str]] = defaultdict(lambda: deque(maxlen=TAIL_LINES))
    detail: JobDetail | None = None
    summary: LogSummary | None = None
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a command may have held it back until here
        with closing(client.log_batches(job, query=query, follow=follow)) as events:
            for event in events:
                match event:
                    case tuple():
                        for (run, replica), entries in groupby(event, attrgetter("run", "task")):
                            lines = [(entry.stream, entry.text) for entry in entries]
                            received[f"{run}/{replica}"].extend(lines)
                            tails[replica].extend(text for _, text in lines[-TAIL_LINES:])
                        screen.lines(event)
                    case JobDetail():
                        _check_replica(event, job, task)
                        detail = event
                        screen.status(event)
                    case LogSummary():
                        summary = event
                    case StreamLost():
                        screen.note(
                            f"Lost the connection to the server ({event.reason}). The job goes on. Reconnecting..."
                        )
                    case StreamResumed():
                        screen.note("Reconnected to the server.")
        if detail is None or (follow and detail.state not in FINAL_JOB_STATES):
            detail = client.detail(job)
            _check_replica(detail, job, task)
    except KeyboardInterrupt:
        screen.close()
        screen.note(hint())
        return INTERRUPTED
    finally:
        screen.close()
    if summary is not None:
        for line in log_warnings(summary, received, query):
            screen.note(line)
    if not follow and detail.state not in FINAL_JOB_STATES:
        return 0
    gap = [""] if received else []
    for line in (*gap, *summary_lines(detail, tails, client.flags), *next_command(client, detail)):
        screen.note(line)
    return exit_code(detail)


def resume_hint(job: str, flags: str = "") -> str:
    """Message after Ctrl-C: how to see the log again or cancel the job. `flags` select its server and project."""
    return (
        f"\nThe job goes on. To see its log again:  jobs stream-logs {job}{flags}\n"
        f"To end it:                             jobs cancel {job}{flags}"
    )


def cancel_hint(job: str, cancelled: bool, flags: str = "") -> str:
    """Message after the second Ctrl-C: whether the job is being cancelled, and how to see its end."""
    if cancelled:
        return f"\nThe job is being cancelled. To see its end:  jobs stream-logs {job}{flags}"
    return f"\nThe server has not confirmed yet that it cancels the job. To make sure:  jobs cancel {job}{flags}"


def log_warnings(summary: LogSummary, received: Mapping[str, LogDigest], query: LogQuery = ALL_LINES) -> list[str]:
    """One line for each replica whose log was cut by the quota, or arrived incomplete or damaged. Pure."""
    warnings = []
    for name, count in summary.lines.items():
        run, _, replica = name.partition("/")
        if query.task and replica != query.task:
            continue
        whose = f"the log of {replica} (run {run})"
        if name in summary.kept:
            warnings.append(
                f"NOTE: {whose} is cut: the job's log quota was used up. "
                f"Lines from number {summary.kept[name]} on were not stored."
            )
        if query.partial:
            continue
        arrived = received.get(name) or LogDigest()
        expected = summary.sha256.get(name, "")
        if arrived.count != count:
            warnings.append(f"WARNING: {whose} has {count} lines; {arrived.count} arrived.")
        elif expected and arrived.hexdigest() != expected:
            warnings.append(
                f"WARNING: {whose} is damaged: all {count} lines arrived, but their digest differs from the "
                "agent's. Some were changed on the network or on a disk."
            )
    return warnings


def _check_replica(detail: JobDetail, job: str, task: str) -> None:
    names = dict.fromkeys(replica.task for run in detail.runs for replica in run.replicas)
    if task and names and task not in names:
        raise NotFound(f"Job [{job}] has no replica {task}; it has {formats.shortened(names)}.")


def exit_code(detail: JobDetail) -> int:
    """0 only for a job that succeeded; else the code of the replica that failed first, else 1."""
    if detail.state is JobState.SUCCEEDED:
        return 0
    return detail.exit_code or 1


def summary_lines(
    detail: JobDetail, tails: Mapping[str, Collection[str]] = MappingProxyType({}), flags: str = ""
) -> list[str]:
    """The verdict in a few lines. `tails`: last received lines by replica, for a verdict without lines. `flags` select
    the job's server and project. Pure."""
    job = detail.job
    started = job.get("startTime") or job.get("createTime")
    took = f" after {elapsed(started, parse_rfc3339(job['endTime']))}" if started and job.get("endTime") else ""
    where = [f"  Job dir: {detail.job_dir}"] if detail.job_dir else []
    where = [*(f"  {line}" for line in (*study_status.summary(job), *study_status.next_step(job, flags))), *where]
    headline = f"Job [{job.get('jobId')}] {_PAST[detail.state]}{took}."
    if detail.state is JobState.SUCCEEDED:
        return [headline, *where]
    verdict = detail.verdict
    lines = [headline]
    if verdict is None or not verdict.replica or detail.state is JobState.CANCELLED:
        message = str(job.get("errorMessage") or (verdict.message if verdict else ""))
        lines += [f"  {line}" for line in message.rstrip().splitlines()]
    else:
        code = f", exit code {verdict.exit_code}" if verdict.exit_code is not None else ""
        lines += [f"  {verdict.cause}"] if verdict.cause else []
        lines.append(f"  {verdict.replica} failed first ({verdict.reason}{code}):")
        lines += [f"  {line}" for line in verdict.message.removesuffix(verdict.cause).rstrip().splitlines()]
        lines += [f"  {verdict.retry}"] if verdict.retry else []
        if last_lines := verdict.last_lines or tails.get(verdict.replica, ()):
            lines.append(f"  Last lines of {verdict.replica}:")
            lines += [f"    {line}" for line in last_lines]
    return [*lines, *where, f"  Exit code: {exit_code(detail)}"]


_PAST = {
    **{state: f"is {state}" for state in JobState},
    JobState.SUCCEEDED: "succeeded",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "was cancelled",
}
