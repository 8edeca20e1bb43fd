"""Text on the progress of a job's runs: steps, checkpoints, lost work, metrics and stacks. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_cli.output.jobs.formats import count, table
from trainyard_cli.output.log.log_screen import elapsed, local_time
from trainyard_cli.output.text.safe import without_control
from trainyard_protocol.answers.jobs import CONTINUED, JobDetail, ReplicaView, RunView
from trainyard_protocol.states import FINAL_JOB_STATES, Outcome

_STACK_LINES = 12  # of each replica
_MAX_METRICS = 8  # in a line


@dataclass(frozen=True, slots=True)
class LastCheckpoint:
    """Newest checkpoint that the job's runs have reported."""

    step: int
    at: datetime


def lines(detail: JobDetail, now: datetime) -> list[str]:
    """Lines for a person; empty for a job that reports no steps."""
    text = []
    continued = {event.run: event.message for event in detail.events if event.kind == CONTINUED}
    for index, run in enumerate(detail.runs[:-1]):
        following = detail.runs[index + 1].number
        text += _lost(run, last_checkpoint(detail.runs[: index + 1]), continued.get(following, ""))
    if detail.runs:
        last, checkpoint = detail.runs[-1], last_checkpoint(detail.runs)
        ended = detail.state in FINAL_JOB_STATES
        text += _lost(last, checkpoint) if ended else _at_risk(last, checkpoint, now)
        text += _done_again(detail)
        text += _metrics(detail)
        text += _stacks(last)
    return text


def last_checkpoint(runs: Sequence[RunView]) -> LastCheckpoint | None:
    """The newest checkpoint of these runs of one job, by time."""
    checkpoints = [
        LastCheckpoint(replica.durable_step, replica.durable_at)
        for run in runs
        for replica in run.replicas
        if replica.durable_step is not None and replica.durable_at is not None
    ]
    return max(checkpoints, key=lambda checkpoint: checkpoint.at, default=None)


def leader(run: RunView) -> ReplicaView | None:
    """The replica with the highest step, the primary among equals."""
    steps = [replica for replica in run.replicas if replica.step is not None]
    return max(steps, key=lambda replica: replica.step or 0, default=None)


def _at_risk(run: RunView, checkpoint: LastCheckpoint | None, now: datetime) -> list[str]:
    stalled = [
        f"{replica.task} {'is silent' if replica.stall.silent else f'is stalled at step {replica.stall.step}'} since "
        f"{local_time(replica.stall.since.isoformat(), short=True)}."
        for replica in run.replicas
        if replica.stall is not None
    ]
    first = leader(run)
    if first is None or first.step is None:
        return stalled
    parts = [f"Step {_of(first)}."]
    if checkpoint is None:
        parts.append("No checkpoint was reported yet: a failure would lose all steps.")
    else:
        steps, since = first.step - checkpoint.step, elapsed(checkpoint.at.isoformat(), now)
        when = local_time(checkpoint.at.isoformat(), short=True)
        parts.append(f"Last checkpoint: step {checkpoint.step}, at {when}.")
        parts.append(f"At risk: {count(steps, 'step')}, {since}." if steps > 0 else "Nothing is at risk.")
    return [" ".join(parts), *stalled]


def _lost(run: RunView, checkpoint: LastCheckpoint | None, continued: str = "") -> list[str]:
    """Steps that a run lost at its end, and where the next one continued; none if it reported no steps or succeeded."""
    first = leader(run)
    failed = run.verdict is not None and run.verdict.outcome is not Outcome.SUCCEEDED
    if first is None or first.step is None or not failed:
        return []
    why = f" ({run.verdict.reason}, {run.verdict.replica})" if run.verdict and run.verdict.replica else ""
    parts = [f"Run {run.number}{why} ended at step {_of(first)}."]
    if checkpoint is None:
        parts.append("It had reported no checkpoint.")
    else:
        lost = max(0, first.step - checkpoint.step)
        parts.append(f"Last checkpoint: step {checkpoint.step}; {count(lost, 'step') if lost else 'nothing'} lost.")
    return [" ".join(filter(None, (*parts, continued)))]


def _done_again(detail: JobDetail) -> list[str]:
    """The work that was lost, a line for each cause; none without any."""
    if not detail.lost:
        return []
    headers = ("DONE AGAIN AFTER", "STEPS", f"{detail.lost[0].unit}-SECONDS")
    rows = [(lost.cause, f"{lost.steps:,}", f"{lost.seconds:,.0f}") for lost in detail.lost]
    return table(headers, rows).splitlines()


def _metrics(detail: JobDetail) -> list[str]:
    """The last values of the most important metrics, with the epoch that the program is at."""
    values = [f"{without_control(name)} {value:.6g}" for name, value in detail.last_values.items()][:_MAX_METRICS]
    if not values:
        return []
    digests = [replica.metrics for run in detail.runs[-1:] for replica in run.replicas if replica.metrics is not None]
    epoch = ""
    for digest in digests:
        if digest.epoch is not None and not epoch:
            total = f" of {digest.epochs:.10g}" if digest.epochs is not None else ""
            epoch = f" (epoch {digest.epoch:.10g}{total})"
    return [f"Metrics: {', '.join(values)}{epoch}."]


def _stacks(run: RunView) -> list[str]:
    """Stacks of the replicas of a stalled run."""
    text = []
    for replica in run.replicas:
        if replica.stacks:
            stack = [without_control(line) for line in replica.stacks.splitlines()]
            more = ["  ..."] if len(stack) > _STACK_LINES else []
            text += [f"Stacks of {replica.task}:", *(f"  {line}" for line in stack[:_STACK_LINES]), *more]
    return text


def _of(replica: ReplicaView) -> str:
    return f"{replica.step} of {replica.steps}" if replica.steps is not None else f"{replica.step}"
