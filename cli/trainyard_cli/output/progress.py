"""How far a job's runs are, what they measure, what of it a failure would cost, and what a failure did cost. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from trainyard_cli.output.log_screen import elapsed, local_time, without_control
from trainyard_protocol.states import FINAL_JOB_STATES, Outcome
from trainyard_protocol.views import JobDetail, ReplicaView, RunView

_STACK_LINES = 12  # of each replica
_METRICS = 8  # in a line


@dataclass(frozen=True, slots=True)
class Durable:
    """The newest checkpoint that a run, or an earlier one of its job, has reported."""

    step: int
    at: datetime


def lines(detail: JobDetail, now: datetime) -> list[str]:
    """A few lines for a person; none for a job that reports no steps."""
    found = []
    for index, run in enumerate(detail.runs[:-1]):
        found += _lost(run, durable(detail.runs[: index + 1]), detail.runs[index + 1])
    if detail.runs:
        last, kept = detail.runs[-1], durable(detail.runs)
        over = detail.state in FINAL_JOB_STATES
        found += _lost(last, kept, None) if over else _at_risk(last, kept, now)
        found += _measured(last)
        found += _stacks(last)
    return found


def durable(runs: Sequence[RunView]) -> Durable | None:
    """Of these runs of one job the newest checkpoint, by its time: job-dir outlives a run."""
    kept = [
        Durable(replica.durable_step, replica.durable_at)
        for run in runs
        for replica in run.replicas
        if replica.durable_step is not None and replica.durable_at is not None
    ]
    return max(kept, key=lambda one: one.at, default=None)


def leader(run: RunView) -> ReplicaView | None:
    """The replica that stands for the run's step: the one that is the furthest, the primary among equals."""
    steps = [replica for replica in run.replicas if replica.step is not None]
    return max(steps, key=lambda replica: replica.step or 0, default=None)


def _at_risk(run: RunView, kept: Durable | None, now: datetime) -> list[str]:
    first = leader(run)
    if first is None or first.step is None:
        return []
    said = [f"Step {_of(first)}."]
    if kept is None:
        said.append("No checkpoint was reported yet: all of it would be lost.")
    else:
        steps, since = first.step - kept.step, elapsed(kept.at.isoformat(), now)
        when = local_time(kept.at.isoformat(), short=True)
        said.append(f"Step {kept.step} is durable since {when}.")
        said.append(f"At risk: {_steps(steps)}, {since}." if steps > 0 else "Nothing is at risk.")
    waiting = [replica for replica in run.replicas if replica.stall is not None]
    stalled = [
        f"{replica.task} stands still at step {replica.stall.step} since "
        f"{local_time(replica.stall.since.isoformat(), short=True)}."
        for replica in waiting
        if replica.stall is not None
    ]
    return [" ".join(said), *stalled]


def _lost(run: RunView, kept: Durable | None, following: RunView | None) -> list[str]:
    """Of a run that is over; none where nothing was lost."""
    first = leader(run)
    failed = run.verdict is not None and run.verdict.outcome is not Outcome.SUCCEEDED
    if first is None or first.step is None or not failed:
        return []
    why = f" ({run.verdict.reason}, {run.verdict.replica})" if run.verdict and run.verdict.replica else ""
    said = [f"Run {run.number}{why} ended at step {_of(first)}."]
    if kept is None:
        said.append("It had reported no checkpoint.")
    else:
        lost = max(0, first.step - kept.step)
        said.append(f"Durable was step {kept.step}: {_steps(lost) if lost else 'nothing'} lost.")
    begins = [r.first_step for r in following.replicas if r.first_step is not None] if following else []
    if following is not None and begins:
        said.append(f"Run {following.number} goes on from step {min(begins)}.")
    return [" ".join(said)]


def _measured(run: RunView) -> list[str]:
    """The newest values, each of the first replica that has it: those of the evaluator are among them."""
    values: dict[str, str] = {}
    epoch = ""
    for replica in run.replicas:
        said = replica.metrics
        for one in said.metrics if said is not None else ():
            values.setdefault(one.name, f"{without_control(one.name)} {one.value:.6g}")
        if said is not None and said.epoch is not None and not epoch:
            total = f" of {said.epochs:.10g}" if said.epochs is not None else ""
            epoch = f" (epoch {said.epoch:.10g}{total})"
    if not values:
        return []
    return [f"Measured: {', '.join(list(values.values())[:_METRICS])}{epoch}."]


def _stacks(run: RunView) -> list[str]:
    """What the replicas were doing when the run stood still."""
    found = []
    for replica in run.replicas:
        if replica.stacks:
            stack = [without_control(line) for line in replica.stacks.splitlines()]
            more = ["  ..."] if len(stack) > _STACK_LINES else []
            found += [f"{replica.task} was doing:", *(f"  {line}" for line in stack[:_STACK_LINES]), *more]
    return found


def _of(replica: ReplicaView) -> str:
    return f"{replica.step} of {replica.steps}" if replica.steps is not None else f"{replica.step}"


def _steps(count: int) -> str:
    return f"{count} step{'' if count == 1 else 's'}"
