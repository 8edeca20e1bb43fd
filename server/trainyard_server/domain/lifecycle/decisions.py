"""Lifecycle of a job. Pure: snapshots and `now` in, state transitions and verdicts out.

`step` returns the next transition. The caller applies it in one transaction, reads the job again and repeats until
`step` returns None. Each transition is legal by the tables of `trainyard_protocol.states`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.job.cluster import PRIMARY
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
from trainyard_protocol.wire.observations import Stall
from trainyard_protocol.wire.sync import ExitReport, RunReport
from trainyard_server.domain.lifecycle import evaluators, retries, stalls
from trainyard_server.domain.lifecycle.causes import Cause, shown
from trainyard_server.domain.lifecycle.messages import (
    JOB_COMPLETED,
    about_disk,
    about_permissions,
    error_message,
    sentence,
    the_replica,
)
from trainyard_server.domain.snapshots import JobSnapshot, ReplicaSnapshot, RunSnapshot

_OWN_SIGNALS = (4, 6, 7, 8, 11)  # SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: of the program's own making

_SIGKILLED = 137
_SAME_MOMENT = timedelta(seconds=1)

CANCELLED_BY_USER = "The job was cancelled by the user."

_HOST_REASONS = (Reason.HOST_LOST, Reason.HOST_SHUTDOWN, Reason.RESTORED)
_NOT_STARTED = (ReplicaState.PENDING, ReplicaState.STARTING)
_DESPITE_A_STOP = (*_HOST_REASONS, Reason.HOST_FAILED, Reason.GIVEN_BACK)
"""Reasons that decide a run although its replicas were stopped: the agent stopped them by itself."""
_TAKEN = (Reason.PREEMPTED, Reason.TIME_LIMIT)
"""Reasons of replicas that their engine ends: they decide above the failures of others, which may follow from them."""
_ABOVE_A_STALL = (*_HOST_REASONS, Reason.COMPLETED)
"""Reasons that decide a run even if it is being stopped because it stalled."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Number of new runs in a row after infrastructure failures without progress, the backoff before each, and the
    action for a stalled run whose job requests none."""

    retries: int
    backoff_first_s: float
    backoff_max_s: float
    stall_action: stalls.StallAction = stalls.StallAction.RESTART

    def backoff_s(self, retry: int) -> float:
        """Seconds before new run number `retry`, from 1: doubled each time, up to `backoff_max_s`."""
        return float(min(self.backoff_first_s * 2 ** min(retry - 1, 60), self.backoff_max_s))

    def waiting_pause_s(self, waited_s: float) -> float:
        """Seconds before the next attempt to start what could not start for so long: as long again, within the limits
        of a backoff. So attempts, which are not counted, become rare."""
        return max(self.backoff_first_s, min(waited_s, self.backoff_max_s))


@dataclass(frozen=True, slots=True)
class Transition:
    """The moves of one transaction. `run` and `job` are the new states; None is no move.

    `run_message` and `job_message` go into the history and the service's log. `of_restart`: `run` is the state of that
    restart of an evaluator. `restart`: an evaluator that starts again.
    """

    run: RunState | None = None
    job: JobState | None = None
    run_message: str = ""
    job_message: str = ""
    verdict: Verdict | None = None
    error_message: str = ""
    stop_message: str = ""
    backoff_until: datetime | None = None
    retries_used: int | None = None
    is_still_waiting: bool = False
    """The job moves to QUEUED, but has waited since it was QUEUED before: its maxWaitTime goes on."""
    of_restart: str = ""
    restart: evaluators.Restart | None = None


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """A change of a replica that a report contains. It is a move if `before` and `after` differ."""

    task: str
    before: ReplicaState
    after: ReplicaState
    address: str = ""
    started_at: datetime | None = None
    exit: ExitReport | None = None
    message: str = ""
    waits: str = ""

    @classmethod
    def of(
        cls, replica: ReplicaSnapshot, after: ReplicaState, message: str, ended: ExitReport | None = None
    ) -> "ReplicaChange":
        """A move that the replica itself has not reported."""
        at = replica.address, replica.started_at
        return cls(replica.task, replica.state, after, *at, ended, message)


@dataclass(frozen=True, slots=True)
class EndOfLog:
    """The end of the log of `decider(job)`: its last lines, the cause of its failure, and the retry rules whose
    patterns it matches."""

    last_lines: tuple[str, ...] = ()
    cause: Cause | None = None
    matches: retries.Matches = frozenset()


def step(job: JobSnapshot, now: datetime, policy: RetryPolicy, log: EndOfLog = EndOfLog()) -> Transition | None:
    """The next transition of the job, or None."""
    if job.state in FINAL_JOB_STATES:
        return None
    return _time_limit(job, now) or _cancelling(job) or _restarts(job) or _running(job, now, policy, log)


def deadline(job: JobSnapshot) -> datetime | None:
    """The time at which `step` may decide otherwise although nothing else has changed."""
    if job.state is JobState.RUNNING and job.started_at is not None:
        return job.started_at + _span(job.max_running_s)
    if job.state in (JobState.QUEUED, JobState.PREPARING) and job.max_wait_s is not None and not job.is_held:
        return job.queued_at + _span(job.max_wait_s)
    return None


def is_restless(job: JobSnapshot) -> bool:
    """Whether `step` is to be asked again and again: a replica has stalled, and its steps come without a move, or an
    evaluator has ended, and starts again after a pause."""
    return job.run is not None and any(
        replica.stall is not None or (replica.exit is not None and evaluators.is_evaluator(replica.task))
        for run in (job.run, *job.restarts)
        for replica in run.replicas
    )


def decider(job: JobSnapshot) -> ReplicaSnapshot | None:
    """The replica whose exit decides the live run: by the replicas' own clocks, the first failure or the
    primary's success.

    A lost host decides too, whatever was requested of its replicas, except in a cancelled job. In a run that is
    stopped because it stalled, the exits that follow decide nothing: the replica that stalled decides.
    """
    stalled = _stall(job)
    if stalled is None or job.run is None:
        return _first(job)
    return next(replica for replica in job.run.replicas if replica.task == stalled.replica)


class _Exit(NamedTuple):
    """An exit that may decide a run. They sort by `time`, `order` in it and `position` in the gang."""

    time: datetime
    order: int
    position: int
    error: timedelta
    reason: Reason
    replica: ReplicaSnapshot


def _first(job: JobSnapshot) -> ReplicaSnapshot | None:
    """The replica whose exit decides if no stall does.

    A preemption, or a time limit, decides above all failures of its run: others may fail of it before the replica
    itself has ended. So does a replica that was killed in the moment in which another one failed: its connections end
    before it does.
    """
    if job.run is None:
        return None
    exits = sorted(
        _Exit(*_end_of(replica.exit), position, timedelta(seconds=replica.exit.error_s), replica.exit.reason, replica)
        for position, replica in enumerate(evaluators.deciding(job))
        if replica.exit is not None and _decides(replica, replica.exit, job.state is JobState.CANCELLING)
    )
    if not exits:
        return None
    first = _earliest(exits)
    if first.reason is Reason.COMPLETED:
        return first.replica
    taken = next((ended.replica for ended in exits if ended.reason in _TAKEN), None)
    with_it = (ended.replica for ended in exits if _is_killed_with(ended.replica, first.replica))
    return taken or next(with_it, first.replica)


def _is_killed_with(replica: ReplicaSnapshot, first: ReplicaSnapshot) -> bool:
    """Whether `first`, whose program failed, may have failed of the replica's end. Of a runtime that orders the ends
    itself none does."""
    killed, failed = replica.exit, first.exit
    if killed is None or failed is None or failed.reason is not Reason.PROGRAM_ERROR or failed.order:
        return False
    is_kill = killed.reason is Reason.KILLED_BY_SIGNAL and killed.code == _SIGKILLED
    is_sudden = is_kill or killed.reason in (Reason.OUT_OF_MEMORY, Reason.VANISHED)
    return is_sudden and killed.finished_at - failed.finished_at <= _SAME_MOMENT


def _earliest(exits: Sequence[_Exit]) -> _Exit:
    """The first of the sorted exits. Of parts whose clocks are known less well than their first exits are apart, which
    of these was first is not known: then the first in the gang is."""
    firsts: dict[str, _Exit] = {}
    for ended in exits:
        firsts.setdefault(ended.replica.part, ended)
    first = exits[0]
    until = first.time + first.error
    return min((other for other in firsts.values() if other.time - other.error <= until), key=lambda other: other[1:3])


def _end_of(ended: ExitReport) -> tuple[datetime, int]:
    """The end, to sort by: of a clock with whole seconds, the second and the runtime's order."""
    return ended.finished_at.replace(microsecond=0) if ended.order else ended.finished_at, ended.order


def _stall(job: JobSnapshot) -> Verdict | None:
    """The verdict of a run that was stopped because it stalled, unless an exit is above it."""
    if job.run is None or job.state is JobState.CANCELLING:
        return None
    first = _first(job)
    if first is not None and first.exit is not None and first.exit.reason in _ABOVE_A_STALL:
        return None
    return job.run.stalled


def has_cause(replica: ReplicaSnapshot) -> bool:
    """Whether the log of a replica that decides a run may say why it failed: it ended by itself, and was not killed."""
    if replica.exit is None:
        return False
    by_itself = replica.exit.code is not None and replica.exit.code - 128 in _OWN_SIGNALS
    return replica.exit.reason is Reason.PROGRAM_ERROR or (replica.exit.reason is Reason.KILLED_BY_SIGNAL and by_itself)


def stall_changes(run: RunSnapshot, report: RunReport) -> tuple[list[tuple[str, Stall | None, str]], RunSnapshot]:
    """Changes of stalls in the report, as (task, stall, stacks), and the run with them applied.

    After the run is decided, stalls are ignored.
    """
    if run.state not in (RunState.PREPARING, RunState.RUNNING):
        return [], run
    reports = {replica.task: replica for replica in report.replicas}
    changes: list[tuple[str, Stall | None, str]] = []
    replicas = []
    for member in run.replicas:
        reported = reports.get(member.task)
        stacks = reported.stacks if reported is not None and reported.stacks else member.stacks
        if reported is None or reported.exit is not None or (reported.stall, stacks) == (member.stall, member.stacks):
            replicas.append(member)
            continue
        changes.append((member.task, reported.stall, reported.stacks))
        replicas.append(replace(member, stall=reported.stall, stacks=stacks))
    return changes, replace(run, replicas=tuple(replicas))


def observe(run: RunSnapshot, report: RunReport, now: datetime) -> list[ReplicaChange]:
    """Changes of replicas in the report. A report that is older than the snapshot has none."""
    replicas = {replica.task: replica for replica in run.replicas}
    changes = []
    for reported in report.replicas:
        replica = replicas.get(reported.task)
        if replica is None or replica.state is ReplicaState.EXITED:
            continue
        ended = reported.exit
        if reported.state is ReplicaState.EXITED and ended is None:
            ended = ExitReport(
                code=None, reason=Reason.VANISHED, message="It ended without an exit status.", finished_at=now
            )
        moved = reported.state in REPLICA_MOVES[replica.state] and reported.state is not ReplicaState.UNKNOWN
        address = reported.address or replica.address
        started_at = reported.started_at or replica.started_at
        if run.is_spread:
            # An agent that has started again may have placed its part anew: the others know the first address. Its
            # clock, by which times are related to this one's, may be known better by now.
            address, started_at = replica.address or address, replica.started_at or started_at
        after = reported.state if moved else replica.state
        waits = reported.waits if after in _NOT_STARTED else ""
        if not moved and (address, started_at, waits) == (replica.address, replica.started_at, replica.waits):
            continue
        exited = ended if after is ReplicaState.EXITED else None
        changes.append(
            ReplicaChange(
                reported.task,
                replica.state,
                after,
                address,
                started_at,
                exited,
                _observed(replica, after, exited),
                waits,
            )
        )
    return changes


def silent_changes(run: RunSnapshot, agent: str) -> list[ReplicaChange]:
    """Changes for a run of a silent agent: every replica that has not exited becomes UNKNOWN."""
    message = f"Agent {agent} is silent: the state of {{}} is unknown until the agent reports again."
    return [
        ReplicaChange.of(r, ReplicaState.UNKNOWN, message.format(r.task))
        for r in run.replicas
        if ReplicaState.UNKNOWN in REPLICA_MOVES[r.state]
    ]


def host_lost(run: RunSnapshot, agent: str, lease_s: float, now: datetime) -> list[ReplicaChange]:
    """Changes for a run whose agent was silent for longer than its lease: the agent has stopped all replicas itself."""
    ended = ExitReport(
        code=None,
        reason=Reason.HOST_LOST,
        message=f"Its agent {agent} was silent for more than {lease_s:g} s.",
        finished_at=now,
    )
    return _all_ended(run, ended)


def restored_without(run: RunSnapshot, message: str, now: datetime) -> list[ReplicaChange]:
    """Changes for a run of a restored backup that is no more, for the reason in the message."""
    return _all_ended(run, ExitReport(code=None, reason=Reason.RESTORED, message=message, finished_at=now))


def _all_ended(run: RunSnapshot, ended: ExitReport) -> list[ReplicaChange]:
    """Changes for a run whose replicas have all ended so, but for those that had ended before."""
    return [
        ReplicaChange.of(r, ReplicaState.EXITED, sentence(r.task, ended), ended)
        for r in run.replicas
        if r.state is not ReplicaState.EXITED
    ]


def may_give_up(
    job: JobSnapshot,
    lost: Sequence[ReplicaChange],
    now: datetime,
    policy: RetryPolicy,
    matches: retries.Matches = frozenset(),
) -> bool:
    """Whether the live run may end without its agent, which has no lease and keeps its replicas running.

    It may if the run is being stopped and no new run would follow beside the old replicas. `lost` is the result of
    `host_lost`, and `matches` are the retry rules that the log of `decider(job)` matches.
    """
    run = job.run
    if run is None or run.state is not RunState.STOPPING:
        return False
    exits = {change.task: change.exit for change in lost}
    replicas = tuple(
        replace(r, state=ReplicaState.EXITED, exit=exits.get(r.task, r.exit), log_complete=True) for r in run.replicas
    )
    left = replace(run, replicas=replicas)
    log = EndOfLog(matches=matches)
    return not lost or _ended(replace(job, run=left), left, now, policy, log).job is not JobState.QUEUED


def verdict_of(job: JobSnapshot, log: EndOfLog = EndOfLog()) -> Verdict:
    """The verdict of the live run. The run must be complete."""
    replica, stalled = decider(job), _stall(job)
    last_lines, cause = log.last_lines, log.cause
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
        why = shown(cause, replica.task) if cause is not None else ""
        notes = (about_permissions(replica.exit, why), about_disk(replica.exit))
        parts = (sentence(replica.task, replica.exit), *notes, why)
        return Verdict(
            outcome=Outcome.FAILED,
            reason=replica.exit.reason,
            message=" ".join(part for part in parts if part),
            replica=replica.task,
            exit_code=code if code is not None and 1 <= code <= 255 else 1,
            last_lines=tuple(last_lines),
            step=replica.step,
            cause=why,
            cause_cursor=cause.cursor if cause is not None else None,
        )
    if job.state is JobState.CANCELLING:
        return Verdict(outcome=Outcome.CANCELLED, reason=Reason.STOPPED, message=job.stop_message, exit_code=1)
    return Verdict(
        outcome=Outcome.FAILED,
        reason=Reason.VANISHED,
        message="The replicas were stopped on their machine without a request of this server.",
        exit_code=1,
    )


def _time_limit(job: JobSnapshot, now: datetime) -> Transition | None:
    live = job.run is None or job.run.state in (RunState.PREPARING, RunState.RUNNING)
    if not live:
        return None
    limit = deadline(job)
    if limit is None or now < limit:
        return None
    if job.state is JobState.RUNNING:
        return _cancel(
            f"The job was cancelled because it ran longer than its maxRunningTime of {job.max_running_s:g}s."
        )
    return _cancel(
        f"The job was cancelled because it waited longer than its maxWaitTime of {job.max_wait_s:g}s before it ran."
    )


def _span(seconds: float) -> timedelta:
    return timedelta(seconds=min(seconds, timedelta.max.total_seconds() / 1000))


def _cancel(why: str) -> Transition:
    return Transition(job=JobState.CANCELLING, job_message=why, stop_message=why)


def _cancelling(job: JobSnapshot) -> Transition | None:
    if job.state is not JobState.CANCELLING:
        return None
    if job.run is None:
        return Transition(job=JobState.CANCELLED, job_message="Job cancelled.", error_message=job.stop_message)
    if job.run.state in (RunState.PREPARING, RunState.RUNNING):
        return Transition(run=RunState.STOPPING)
    return None


def _running(job: JobSnapshot, now: datetime, policy: RetryPolicy, log: EndOfLog) -> Transition | None:
    run = job.run
    if run is None:
        return None
    if run.state is RunState.PREPARING and all(replica.has_run for replica in run.replicas):
        return Transition(run=RunState.RUNNING, job=JobState.RUNNING, job_message="All replicas are running.")
    if run.state is not RunState.STOPPING:
        return _decided(job, run) or _stalled(job, run, policy) or _restart(job, now, policy)
    if not run.complete or any(restart.state is not RunState.ENDED for restart in job.restarts):
        return None
    return _ended(job, run, now, policy, log)


def _restarts(job: JobSnapshot) -> Transition | None:
    """The next move of a restart of an evaluator, which ends with the run of its gang."""
    if job.run is None:
        return None
    stopping = job.run.state is RunState.STOPPING
    for run in job.restarts:
        replica, state, verdict = run.replicas[0], None, None
        if run.state is RunState.STOPPING and run.complete:
            state, verdict = RunState.ENDED, evaluators.verdict_of(run)
        elif run.state in (RunState.PREPARING, RunState.RUNNING) and (stopping or replica.exit is not None):
            state = RunState.STOPPING
        elif run.state is RunState.PREPARING and replica.has_run:
            state = RunState.RUNNING
        if state is not None:
            return Transition(run=state, verdict=verdict, of_restart=run.run_id)
    return None


def _restart(job: JobSnapshot, now: datetime, policy: RetryPolicy) -> Transition | None:
    again = evaluators.restart(job, now, policy)
    return Transition(restart=again) if again is not None else None


def _decided(job: JobSnapshot, run: RunSnapshot) -> Transition | None:
    replica = decider(job)
    if replica is None and not all(r.state is ReplicaState.EXITED for r in run.replicas):
        return None
    others = sum(1 for r in run.replicas if r.state is not ReplicaState.EXITED)
    message = f"Stopping the other replicas ({others})." if others else ""
    return Transition(run=RunState.STOPPING, run_message=message)


def _stalled(job: JobSnapshot, run: RunSnapshot, policy: RetryPolicy) -> Transition | None:
    """Stop a stalled run, unless the action is only to report it. The verdict is set now, before the replicas exit.

    A silent run is stopped only if its job asks for it: a program that reports no steps may have a reason to wait.
    """
    silent = any(replica.stall is not None and replica.stall.silent for replica in run.replicas)
    default = stalls.StallAction.REPORT if silent else policy.stall_action
    action = default if job.stall_action is None else job.stall_action
    if run.state is not RunState.RUNNING or action is not stalls.StallAction.RESTART:
        return None
    diagnosis = stalls.diagnose(run.members)
    if diagnosis is None:
        return None
    verdict = Verdict(
        outcome=Outcome.FAILED,
        reason=Reason.STALLED,
        message=f"{the_replica(diagnosis.task)} stalled: {diagnosis.message}",
        replica=diagnosis.task,
        exit_code=1,
        step=next(replica.step for replica in run.replicas if replica.task == diagnosis.task),
    )
    return Transition(run=RunState.STOPPING, run_message="The run stalled: stopping its replicas.", verdict=verdict)


def _ended(job: JobSnapshot, run: RunSnapshot, now: datetime, policy: RetryPolicy, log: EndOfLog) -> Transition:
    verdict = verdict_of(job, log)
    ended = Transition(run=RunState.ENDED, verdict=verdict)
    if verdict.outcome is Outcome.SUCCEEDED:
        return replace(ended, job=JobState.SUCCEEDED, job_message=JOB_COMPLETED)
    if verdict.outcome is Outcome.CANCELLED:
        return replace(ended, job=JobState.CANCELLED, job_message="Job cancelled.", error_message=job.stop_message)
    run_message = f"Run {run.number} failed: {verdict.message}"
    if job.state is JobState.CANCELLING:
        return _failed(ended, run_message, verdict)
    failed = replace(ended, run_message=run_message)
    after = _after_failure(job, run, now, policy, log, failed)
    if after.job is JobState.QUEUED and job.state is JobState.RUNNING and retries.are_disabled(job.training_input):
        return _failed(ended, run_message, verdict.model_copy(update={"retry": retries.DISABLED}))
    return after


def _after_failure(
    job: JobSnapshot, run: RunSnapshot, now: datetime, policy: RetryPolicy, log: EndOfLog, failed: Transition
) -> Transition:
    """The end of a failed run, which a new one follows by a retry rule or because of its reason, or none."""
    verdict = failed.verdict
    assert verdict is not None
    match = retries.match(job, decider(job), log.matches) if _stall(job) is None else None
    if match is not None:
        verdict = verdict.model_copy(update={"retry": match.note})
        failed = replace(failed, verdict=verdict)
        if match.is_left:
            return _again_by(match, now, policy, failed)
        if not match.is_default:
            return _failed(failed, failed.run_message, verdict)
    return _again(job, run, now, policy, failed) or _failed(failed, failed.run_message, verdict)


def _failed(ended: Transition, run_message: str, verdict: Verdict) -> Transition:
    """The end of a run that no other one follows."""
    job_message = f"Job failed. {verdict.retry}".rstrip()
    states = replace(ended, job=JobState.FAILED, run_message=run_message, job_message=job_message)
    return replace(states, verdict=verdict, error_message=error_message(verdict))


def _again_by(match: retries.RuleMatch, now: datetime, policy: RetryPolicy, failed: Transition) -> Transition:
    """The end of a run that a new one follows by a retry rule, whatever other retries there are."""
    assert failed.verdict is not None
    other_host = match.rule.other_host
    pause = policy.backoff_s(match.used + 1)
    where = " on another machine, if there is one," if other_host else ""
    return replace(
        failed,
        job=JobState.QUEUED,
        verdict=failed.verdict.model_copy(update={"retry_rule": match.number, "other_host": other_host}),
        job_message=f"{match.clause}: a new run starts{where} in {pause:g} s ({match.retry}).",
        backoff_until=now + timedelta(seconds=pause),
    )


def _again(
    job: JobSnapshot, run: RunSnapshot, now: datetime, policy: RetryPolicy, failed: Transition
) -> Transition | None:
    """The end of a run that a new one follows; None if none does. `failed`: the end of the run."""
    if failed.verdict is None:
        return None
    reason = failed.verdict.reason
    fault, is_further = FAULTS[reason], run.reached.is_beyond(job.reached_before)
    queued = replace(failed, job=JobState.QUEUED)
    if fault is Fault.OPERATOR or (reason is Reason.TIME_LIMIT and is_further):
        message = "A new run starts as soon as there is room for it."
        return replace(queued, job_message=message, retries_used=0 if is_further else None)
    if fault is Fault.CAPACITY:
        waited_s = (now - job.queued_at).total_seconds()
        # Machines that do not reach each other are no choice for the next run, so it need not wait for others.
        pause = policy.backoff_first_s if reason is Reason.UNREACHED else policy.waiting_pause_s(waited_s)
        return replace(
            queued,
            run_message=f"Run {run.number} was given back: {failed.verdict.message}",
            job_message=f"A new run starts in {pause:g} s. Waiting costs no retry.",
            backoff_until=now + timedelta(seconds=pause),
            is_still_waiting=job.state is JobState.PREPARING,
        )
    is_counted_anew = job.retries_used > 0 and is_further
    retry = 1 if is_counted_anew else job.retries_used + 1
    if fault is not Fault.INFRASTRUCTURE or retry > policy.retries:
        return None
    pause = policy.backoff_s(retry)
    anew = ", counted from 0 again: this run got further than the runs before it" if is_counted_anew else ""
    return replace(
        queued,
        job_message=f"A new run starts in {pause:g} s (retry {retry} of {policy.retries}{anew}).",
        backoff_until=now + timedelta(seconds=pause),
        retries_used=retry,
    )


def _decides(replica: ReplicaSnapshot, ended: ExitReport, cancelling: bool) -> bool:
    fault = FAULTS[ended.reason]
    if cancelling and fault not in (Fault.USER, Fault.NOBODY):
        return False
    if ended.reason in _DESPITE_A_STOP:
        return True
    if ended.after_stop or ended.reason is Reason.STOPPED:
        return False
    return fault is not Fault.NOBODY or replica.task == PRIMARY.name


def _observed(replica: ReplicaSnapshot, after: ReplicaState, ended: ExitReport | None) -> str:
    """The line of the service's log for the move; "" for a move that users need not see."""
    if ended is not None:
        return sentence(replica.task, ended)
    if replica.state is ReplicaState.UNKNOWN and after is not ReplicaState.UNKNOWN:
        return f"{replica.task} is reported again."
    return ""
