"""Wait for jobs without their logs: until each has ended, or has reached a state.

The server reports each change of a state on a stream, so nothing polls. The jobs are followed one after the other: one
that has settled meanwhile is reported as soon as its turn comes.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from trainyard_cli.client import Client, StreamLost, StreamResumed
from trainyard_cli.output.log.follow import INTERRUPTED, exit_code, summary_lines
from trainyard_protocol.answers.dependencies import DependenciesView
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.states import FINAL_JOB_STATES, JobState

TIMED_OUT = 124
"""Exit code when the time is over, as of timeout(1)."""

Notify = Callable[[str], None]

_Change = tuple[str, JobDetail] | StreamLost | StreamResumed | Exception


@dataclass(frozen=True, slots=True)
class WaitResult:
    """The jobs as they are at the end of the wait, in the given order, and the exit code of the command."""

    jobs: tuple[JobDetail, ...]
    code: int


def wait(
    client: Client,
    names: Sequence[str],
    notify: Notify,
    *,
    target: JobState | None = None,
    timeout_s: float | None = None,
) -> WaitResult:
    """Wait until every job has settled: has ended, or with a `target` has reached that state or never can.

    Raises NotFound at once if one of the jobs is unknown. The exit code is 0 if all succeeded, or reached the target;
    else that of the first job in the given order that did not (`exit_code`, at least 1); 124 after `timeout_s`, 130
    after Ctrl-C. The jobs go on in any case.
    """
    jobs = {name: client.detail(name) for name in dict.fromkeys(names)}
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    for detail in jobs.values():
        if is_settled(detail, target):
            _report(detail, target, notify, client.flags)
    pending = [name for name, detail in jobs.items() if not is_settled(detail, target)]
    code = None
    if pending:
        notify(f"Waiting for {', '.join(_now(name, jobs[name]) for name in pending)}.")
        code = _wait(client, jobs, pending, notify, target, deadline)
        if code == TIMED_OUT:
            left = [name for name in pending if not is_settled(jobs[name], target)]
            notify(timeout_message({name: jobs[name] for name in left}, target, timeout_s or 0, client.flags))
    return WaitResult(tuple(jobs.values()), combined_code(list(jobs.values()), target) if code is None else code)


def with_followers(names: Sequence[str], dependencies: Callable[[str], DependenciesView]) -> tuple[str, ...]:
    """The jobs, and all that start after them or after one of those, in this order. Raises NotFound."""
    found = list(dict.fromkeys(names))
    for name in found:  # it grows
        found += [job.job_id for job in dependencies(name).followers if job.job_id not in found]
    return tuple(found)


def is_settled(detail: JobDetail, target: JobState | None) -> bool:
    """Whether there is nothing left to wait for. Pure."""
    return detail.state in FINAL_JOB_STATES or (target is not None and has_reached(detail, target))


def has_reached(detail: JobDetail, target: JobState) -> bool:
    """Whether the job is in that state; PREPARING and RUNNING count also when the job has left them again. Pure."""
    match target:
        case JobState.PREPARING:
            return bool(detail.runs) or detail.state is target or "startTime" in detail.job
        case JobState.RUNNING:
            return detail.state is target or "startTime" in detail.job
        case _:
            return detail.state is target


def combined_code(jobs: Sequence[JobDetail], target: JobState | None) -> int:
    """The exit code for jobs that have settled: that of the first that did not do as requested, else 0. Pure."""
    for detail in jobs:
        if target is None and detail.state is not JobState.SUCCEEDED:
            return exit_code(detail)
        if target is not None and not has_reached(detail, target):
            return exit_code(detail) or 1
    return 0


def timeout_message(left: Mapping[str, JobDetail], target: JobState | None, timeout_s: float, flags: str = "") -> str:
    """The message when the time is over. `flags` select the server and project. Pure."""
    states = ", ".join(_now(name, detail) for name, detail in left.items())
    return (
        f"ERROR: Timed out after {timeout_s:g} s. Not {target or 'ended'} yet: {states}. "
        f"{'It goes' if len(left) == 1 else 'They go'} on.\n"
        f"To wait again:  jobs wait {' '.join(left)}{flags}\n"
        f"To end one:     jobs cancel {next(iter(left))}{flags}"
    )


def _wait(
    client: Client,
    jobs: dict[str, JobDetail],
    pending: Sequence[str],
    notify: Notify,
    target: JobState | None,
    deadline: float | None,
) -> int | None:
    """Record the changes in `jobs` until all have settled: None; or the exit code of a wait that was cut short."""
    changes: SimpleQueue[_Change] = SimpleQueue()
    threading.Thread(target=_follow, args=(client, pending, target, changes), daemon=True).start()
    left = set(pending)
    try:
        while left:
            patience = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                change = changes.get(timeout=patience)
            except Empty:
                return TIMED_OUT
            match change:
                case Exception():
                    raise change
                case StreamLost():
                    notify(f"Lost the connection to the server ({change.reason}). Reconnecting...")
                case StreamResumed():
                    notify("Reconnected to the server.")
                case (name, detail):
                    before, jobs[name] = jobs[name].state, detail
                    if is_settled(detail, target):
                        left.discard(name)
                        _report(detail, target, notify, client.flags)
                    elif detail.state is not before:
                        notify(f"Job [{name}] is {detail.state}.")
    except KeyboardInterrupt:
        notify(f"\nStopped waiting. To wait again:  jobs wait {' '.join(pending)}{client.flags}")
        return INTERRUPTED
    return None


def _follow(client: Client, names: Sequence[str], target: JobState | None, changes: SimpleQueue[_Change]) -> None:
    """Put the changes of one job after the other into the queue; a failure is the last entry."""
    try:
        for name in names:
            with closing(client.logs(name, with_lines=False)) as events:
                for event in events:
                    if isinstance(event, StreamLost | StreamResumed):
                        changes.put(event)
                    if isinstance(event, JobDetail):
                        changes.put((name, event))
                        if is_settled(event, target):
                            break
    except Exception as error:  # noqa: BLE001 - raised again by the thread that waits
        changes.put(error)


def _report(detail: JobDetail, target: JobState | None, notify: Notify, flags: str) -> None:
    name = detail.job.get("jobId")
    if target is not None and has_reached(detail, target):
        is_now = f"is {target}" if detail.state is target else f"has been {target}, and is {detail.state} now"
        notify(f"Job [{name}] {is_now}.")
        return
    for line in summary_lines(detail, flags=flags):
        notify(line)
    if target is not None:
        notify(f"  It has ended, so it can no longer be {target}.")


def _now(name: str, detail: JobDetail) -> str:
    waiting = f": {detail.waiting}" if detail.waiting else ""
    return f"{name} ({detail.state}{waiting})"
