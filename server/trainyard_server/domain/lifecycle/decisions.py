"""What happens next to a job. Pure: snapshots and `now` go in, moves and verdicts come out.

`step` names the one next thing to do; the caller applies it in one transaction, reads the job again and asks
once more, until there is nothing to do. Each step is legal by `trainyard_protocol.states`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from trainyard_protocol.cluster import PRIMARY
from trainyard_protocol.states import (
    FAULTS,
    FINAL_JOB_STATES,
    REPLICA_MOVES,
    Fault,
    JobState,
    Outcome,
    Reason,
    ReplicaState,
    RunState,
)
from trainyard_protocol.sync import ExitReport, RunReport, Stall
from trainyard_protocol.views import Verdict
from trainyard_server.domain.lifecycle import stalls
from trainyard_server.domain.lifecycle.messages import error_message, sentence, the_replica

CANCELLED_BY_USER = "The job was cancelled by the user."

_HOST_REASONS = (Reason.HOST_LOST, Reason.HOST_SHUTDOWN)
_OVER_A_STALL = (*_HOST_REASONS, Reason.COMPLETED)
"""What decides a run even where it is stopped for standing still: its host went away, or it was done after all."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How often a job is started anew after infrastructure failures, and after which pause; what follows when a
    run stalls, where the job itself says nothing of it."""

    retries: int
    backoff_first_s: float
    backoff_max_s: float
    stall_action: stalls.Action = stalls.Action.RESTART

    def backoff_s(self, retry: int) -> float:
        """The pause before new run number `retry`, from 1: doubling up to the longest."""
        return float(min(self.backoff_first_s * 2 ** min(retry - 1, 60), self.backoff_max_s))


@dataclass(frozen=True, slots=True)
class Replica:
    task: str
    state: ReplicaState
    address: str = ""
    started_at: datetime | None = None
    exit: ExitReport | None = None
    log_complete: bool = False
    step: int | None = None
    stall: Stall | None = None
    stacks: str = ""

    @property
    def has_run(self) -> bool:
        return self.state is ReplicaState.RUNNING or (self.exit is not None and self.started_at is not None)

    @property
    def log_closed(self) -> bool:
        """No more lines can come: the log is complete, or went away with its host."""
        return self.log_complete or (self.exit is not None and self.exit.reason is Reason.HOST_LOST)


@dataclass(frozen=True, slots=True)
class Run:
    run_id: str
    number: int
    agent_id: str
    state: RunState
    replicas: tuple[Replica, ...]
    stalled: Verdict | None = None
    """Why it is being stopped, where that is because it stood still."""

    @property
    def members(self) -> tuple[stalls.Member, ...]:
        return tuple(stalls.Member(r.task, r.stall, r.stacks, r.step is not None) for r in self.replicas)

    @property
    def over(self) -> bool:
        """Nothing of it lives, and every line that it will ever log is here."""
        return all(r.state is ReplicaState.EXITED and r.log_closed for r in self.replicas)


@dataclass(frozen=True, slots=True)
class Job:
    """A job and its live run (None while there is none). `started_at`: when it was first RUNNING, which a
    new run does not change."""

    key: int
    project: str
    job_id: str
    state: JobState
    queued_at: datetime
    max_running_s: float
    started_at: datetime | None = None
    max_wait_s: float | None = None
    retries_used: int = 0
    stop_message: str = ""
    run: Run | None = None
    stall_action: stalls.Action | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One transaction's worth of moves. `run` and `job` are the states they move to; None: no move.

    `run_message` and `job_message` are what the history and the service's log say of each.
    """

    run: RunState | None = None
    job: JobState | None = None
    run_message: str = ""
    job_message: str = ""
    verdict: Verdict | None = None
    error_message: str = ""
    stop_message: str = ""
    not_before: datetime | None = None
    retries_used: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """What a report says that we did not know. It is a move where `before` and `after` differ."""

    task: str
    before: ReplicaState
    after: ReplicaState
    address: str = ""
    started_at: datetime | None = None
    exit: ExitReport | None = None
    message: str = ""


def step(job: Job, now: datetime, policy: Policy, last_lines: Sequence[str] = ()) -> Step | None:
    """The next thing to do for the job, or None. `last_lines` end the log of `decider(job)`."""
    if job.state in FINAL_JOB_STATES:
        return None
    return _time_limit(job, now) or _cancelling(job) or _running(job, now, policy, last_lines)


def decider(job: Job) -> Replica | None:
    """The replica whose exit decides the live run: by the replicas' own clocks, the first failure or the
    primary's success.

    A host that went away decides too, whatever else we had asked of its replicas; but not against a
    cancellation, which got what it wanted. Where the run is stopped because it stood still, what its replicas do
    about that decides nothing: the one that held it up does.
    """
    stalled = _stall(job)
    if stalled is None or job.run is None:
        return _first(job)
    return next(replica for replica in job.run.replicas if replica.task == stalled.replica)


def _first(job: Job) -> Replica | None:
    """The replica whose exit decides, were it for exits alone."""
    if job.run is None:
        return None
    exits = [
        (replica.exit.finished_at, position, replica)
        for position, replica in enumerate(job.run.replicas)
        if replica.exit is not None and _decides(replica, replica.exit, job.state is JobState.CANCELLING)
    ]
    return min(exits)[2] if exits else None


def _stall(job: Job) -> Verdict | None:
    """The verdict of a run that was stopped for standing still, where nothing is above it."""
    if job.run is None or job.state is JobState.CANCELLING:
        return None
    first = _first(job)
    if first is not None and first.exit is not None and first.exit.reason in _OVER_A_STALL:
        return None
    return job.run.stalled


def notice(run: Run, report: RunReport) -> tuple[list[tuple[str, Stall | None, str]], Run]:
    """What the report adds to what we know of stalls, as (task, stall, stacks), and the run as it is with that.

    What replicas do once their run is decided is no news: it was the stall, or something else.
    """
    if run.state not in (RunState.PREPARING, RunState.RUNNING):
        return [], run
    seen = {replica.task: replica for replica in report.replicas}
    changes: list[tuple[str, Stall | None, str]] = []
    replicas = []
    for known in run.replicas:
        told = seen.get(known.task)
        stacks = told.stacks if told is not None and told.stacks else known.stacks
        if told is None or told.exit is not None or (told.stall, stacks) == (known.stall, known.stacks):
            replicas.append(known)
            continue
        changes.append((known.task, told.stall, told.stacks))
        replicas.append(replace(known, stall=told.stall, stacks=stacks))
    return changes, replace(run, replicas=tuple(replicas))


def observe(run: Run, report: RunReport, now: datetime) -> list[ReplicaChange]:
    """What the report adds to what we know. A report that is older than our knowledge adds nothing."""
    known = {replica.task: replica for replica in run.replicas}
    changes = []
    for seen in report.replicas:
        replica = known.get(seen.task)
        if replica is None or replica.state is ReplicaState.EXITED:
            continue
        ended = seen.exit
        if seen.state is ReplicaState.EXITED and ended is None:
            ended = ExitReport(
                code=None,
                reason=Reason.VANISHED,
                message="It ended and nobody knows how.",
                finished_at=now,
            )
        moved = seen.state in REPLICA_MOVES[replica.state] and seen.state is not ReplicaState.UNKNOWN
        address = seen.address or replica.address
        started_at = seen.started_at or replica.started_at
        if not moved and (address, started_at) == (replica.address, replica.started_at):
            continue
        after = seen.state if moved else replica.state
        exited = ended if after is ReplicaState.EXITED else None
        changes.append(
            ReplicaChange(
                seen.task,
                replica.state,
                after,
                address,
                started_at,
                exited,
                _observed(replica, after, exited),
            )
        )
    return changes


def silence(run: Run, agent: str) -> list[ReplicaChange]:
    """The run's agent is silent: what we do not know to be over is UNKNOWN."""
    message = f"agent {agent} is silent: {{}} is not dead and not alive until it is heard of again."
    return [
        ReplicaChange(
            r.task, r.state, ReplicaState.UNKNOWN, r.address, r.started_at, None, message.format(r.task)
        )
        for r in run.replicas
        if ReplicaState.UNKNOWN in REPLICA_MOVES[r.state]
    ]


def host_lost(run: Run, agent: str, lease_s: float, now: datetime) -> list[ReplicaChange]:
    """The run's agent has been silent past its lease: by now it has stopped everything itself."""
    ended = ExitReport(
        code=None,
        reason=Reason.HOST_LOST,
        message=f"Its agent {agent} was silent for more than {lease_s:g} s.",
        finished_at=now,
    )
    return [
        ReplicaChange(
            r.task,
            r.state,
            ReplicaState.EXITED,
            r.address,
            r.started_at,
            ended,
            sentence(r.task, ended),
        )
        for r in run.replicas
        if r.state is not ReplicaState.EXITED
    ]


def may_give_up(job: Job, lost: Sequence[ReplicaChange], now: datetime, policy: Policy) -> bool:
    """Whether the live run may end without its agent, which has no lease and so goes on by itself: it is being
    stopped, and no new run follows that could meet what is left of it. `lost`: what `host_lost` says of it.
    """
    run = job.run
    if run is None or run.state is not RunState.STOPPING:
        return False
    exits = {change.task: change.exit for change in lost}
    replicas = tuple(
        replace(r, state=ReplicaState.EXITED, exit=exits.get(r.task, r.exit), log_complete=True)
        for r in run.replicas
    )
    left = replace(run, replicas=replicas)
    return not lost or _ended(replace(job, run=left), left, now, policy, ()).job is not JobState.QUEUED


def verdict_of(job: Job, last_lines: Sequence[str] = ()) -> Verdict:
    """Why the live run ended as it did. It must be over."""
    replica, stalled = decider(job), _stall(job)
    if replica is not None and stalled is not None:
        return stalled.model_copy(update={"last_lines": tuple(last_lines), "step": replica.step})
    if replica is not None and replica.exit is not None:
        if replica.exit.reason is Reason.COMPLETED:
            return Verdict(
                outcome=Outcome.SUCCEEDED,
                reason=Reason.COMPLETED,
                message=f"{the_replica(replica.task)} completed.",
                replica=replica.task,
                exit_code=0,
                step=replica.step,
            )
        code = replica.exit.code
        return Verdict(
            outcome=Outcome.FAILED,
            reason=replica.exit.reason,
            message=sentence(replica.task, replica.exit),
            replica=replica.task,
            exit_code=code if code is not None and 1 <= code <= 255 else 1,
            last_lines=tuple(last_lines),
            step=replica.step,
        )
    if job.state is JobState.CANCELLING:
        return Verdict(
            outcome=Outcome.CANCELLED, reason=Reason.STOPPED, message=job.stop_message, exit_code=1
        )
    return Verdict(
        outcome=Outcome.FAILED,
        reason=Reason.VANISHED,
        message="The replicas were stopped on their machine, and nobody here had asked for it.",
        exit_code=1,
    )


def _time_limit(job: Job, now: datetime) -> Step | None:
    live = job.run is None or job.run.state in (RunState.PREPARING, RunState.RUNNING)
    if not live:
        return None
    if job.state is JobState.RUNNING and job.started_at is not None:
        if now >= job.started_at + _span(job.max_running_s):
            return _cancel(
                f"The job was cancelled because it ran longer than its maxRunningTime of {job.max_running_s:g}s."
            )
        return None
    waits = job.state in (JobState.QUEUED, JobState.PREPARING) and job.max_wait_s is not None
    if waits and now >= job.queued_at + _span(job.max_wait_s or 0):
        return _cancel(
            "The job was cancelled because it waited longer than its maxWaitTime of "
            f"{job.max_wait_s:g}s before it ran."
        )
    return None


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, timedelta.max.total_seconds() / 1000))


def _cancel(why: str) -> Step:
    return Step(job=JobState.CANCELLING, job_message=why, stop_message=why)


def _cancelling(job: Job) -> Step | None:
    if job.state is not JobState.CANCELLING:
        return None
    if job.run is None:
        return Step(job=JobState.CANCELLED, job_message="Job cancelled.", error_message=job.stop_message)
    if job.run.state in (RunState.PREPARING, RunState.RUNNING):
        return Step(run=RunState.STOPPING)
    return None


def _running(job: Job, now: datetime, policy: Policy, last_lines: Sequence[str]) -> Step | None:
    run = job.run
    if run is None:
        return None
    if run.state is RunState.PREPARING and all(replica.has_run for replica in run.replicas):
        return Step(run=RunState.RUNNING, job=JobState.RUNNING, job_message="All replicas are running.")
    if run.state is not RunState.STOPPING:
        return _decided(job, run) or _stalled(job, run, policy)
    return _ended(job, run, now, policy, last_lines) if run.over else None


def _decided(job: Job, run: Run) -> Step | None:
    replica = decider(job)
    if replica is None and not all(r.state is ReplicaState.EXITED for r in run.replicas):
        return None
    others = sum(1 for r in run.replicas if r.state is not ReplicaState.EXITED)
    message = f"Stopping the other replicas ({others})." if others else ""
    return Step(run=RunState.STOPPING, run_message=message)


def _stalled(job: Job, run: Run, policy: Policy) -> Step | None:
    """Stops a run that stands still, unless that is only to be reported. Its verdict is given now: what follows,
    down to the killing of what does not react, follows from it."""
    action = policy.stall_action if job.stall_action is None else job.stall_action
    if run.state is not RunState.RUNNING or action is not stalls.Action.RESTART:
        return None
    found = stalls.diagnose(run.members)
    if found is None:
        return None
    verdict = Verdict(
        outcome=Outcome.FAILED,
        reason=Reason.STALLED,
        message=f"{the_replica(found.task)} stalled: {found.message}",
        replica=found.task,
        exit_code=1,
        step=next(replica.step for replica in run.replicas if replica.task == found.task),
    )
    return Step(run=RunState.STOPPING, run_message="The run stalled: stopping its replicas.", verdict=verdict)


def _ended(job: Job, run: Run, now: datetime, policy: Policy, last_lines: Sequence[str]) -> Step:
    verdict = verdict_of(job, last_lines)
    if verdict.outcome is Outcome.SUCCEEDED:
        return Step(
            run=RunState.ENDED,
            job=JobState.SUCCEEDED,
            job_message="Job completed successfully.",
            verdict=verdict,
        )
    if verdict.outcome is Outcome.CANCELLED:
        return Step(
            run=RunState.ENDED,
            job=JobState.CANCELLED,
            job_message="Job cancelled.",
            verdict=verdict,
            error_message=job.stop_message,
        )
    fault = FAULTS[verdict.reason]
    if job.state is not JobState.CANCELLING and fault is Fault.OPERATOR:
        message = "A new run starts as soon as there is room for it."
        return Step(
            run=RunState.ENDED,
            job=JobState.QUEUED,
            run_message=f"Run {run.number} failed: {verdict.message}",
            job_message=message,
            verdict=verdict,
        )
    retry = job.retries_used + 1
    if job.state is not JobState.CANCELLING and fault is Fault.INFRASTRUCTURE and retry <= policy.retries:
        pause = policy.backoff_s(retry)
        return Step(
            run=RunState.ENDED,
            job=JobState.QUEUED,
            run_message=f"Run {run.number} failed: {verdict.message}",
            job_message=f"A new run starts in {pause:g} s (retry {retry} of {policy.retries}).",
            verdict=verdict,
            not_before=now + timedelta(seconds=pause),
            retries_used=retry,
        )
    return Step(
        run=RunState.ENDED,
        job=JobState.FAILED,
        run_message=f"Run {run.number} failed: {verdict.message}",
        job_message="Job failed.",
        verdict=verdict,
        error_message=error_message(verdict),
    )


def _decides(replica: Replica, ended: ExitReport, cancelling: bool) -> bool:
    fault = FAULTS[ended.reason]
    if cancelling and fault in (Fault.INFRASTRUCTURE, Fault.OPERATOR):
        return False
    if ended.reason in _HOST_REASONS:
        return True
    if ended.after_stop or ended.reason is Reason.STOPPED:
        return False
    return fault is not Fault.NOBODY or replica.task == PRIMARY.name


def _observed(replica: Replica, after: ReplicaState, ended: ExitReport | None) -> str:
    """What the service's log says of the move; only what a user wants to know of is a line of its own."""
    if ended is not None:
        return sentence(replica.task, ended)
    if replica.state is ReplicaState.UNKNOWN and after is not ReplicaState.UNKNOWN:
        return f"{replica.task} is heard of again."
    return ""
