"""Restarts of evaluators. Pure.

An evaluator is outside the cluster: nobody waits for it. If it fails after it has run, its gang goes on, and it starts
again alone: in a run of its own, beside that of the gang, which ends with it. If it fails again and again, its last end
counts as that of any other replica.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.states import FAULTS, Fault, Outcome, Reason, RunState
from trainyard_protocol.wire.sync import ExitReport
from trainyard_server.domain.lifecycle.messages import sentence, the_replica
from trainyard_server.domain.snapshots import JobSnapshot, ReplicaSnapshot, RunSnapshot

MOST_RESTARTS = 5
"""Most restarts of an evaluator, as in the real service."""


_FREE = (Fault.OPERATOR, Fault.CAPACITY)
_NOT_STARTED = (Reason.HOST_FAILED, Reason.GIVEN_BACK)
"""Reasons of replicas that their engine has not started, which are stopped for that."""


class Backoff(Protocol):
    def backoff_s(self, retry: int) -> float: ...


class Restart(NamedTuple):
    """The evaluator to start again now, and the line of the service's log about it."""

    task: str
    message: str


def is_evaluator(task: str) -> bool:
    return Task.parse(task).type == "evaluator"


def deciding(job: JobSnapshot) -> Iterator[ReplicaSnapshot]:
    """The replicas whose ends may decide the live run: of an evaluator its last life, unless it starts again."""
    for replica in job.run.replicas if job.run is not None else ():
        if not is_evaluator(replica.task):
            yield replica
        elif not _starts_again(lives := _lives(job, replica.task)):
            yield lives[-1].replica


def run_of(job: JobSnapshot, replica: ReplicaSnapshot) -> RunSnapshot:
    """The live run, or the restart beside it, that has this replica."""
    return next(run for run in _runs(job) if any(member is replica for member in run.replicas))


def restart(job: JobSnapshot, now: datetime, policy: Backoff) -> Restart | None:
    """The evaluator of a running gang that starts again now, if there is one."""
    if job.run is None or job.run.state is not RunState.RUNNING:
        return None
    for task in filter(is_evaluator, (replica.task for replica in job.run.replicas)):
        lives = _lives(job, task)
        run, replica = lives[-1]
        has_ended = replica.log_complete and (run is job.run or run.state is RunState.ENDED)
        if not has_ended or replica.exit is None or not _starts_again(lives):
            continue
        fault, charged = FAULTS[replica.exit.reason], _charged(lives)
        free = fault in _FREE
        count = _count(lives, Fault.CAPACITY) if fault is Fault.CAPACITY else charged
        pause = timedelta(seconds=0 if fault is Fault.OPERATOR else policy.backoff_s(count))
        ended_at = replica.exit.finished_at  # by the agent's clock, which may be ahead
        if not ended_at <= now < ended_at + pause:
            counted = "" if free else f" (restart {charged} of {MOST_RESTARTS})"
            return Restart(task, f"{the_replica(task)} starts again, alone{counted}.")
    return None


def verdict_of(run: RunSnapshot) -> Verdict:
    """The verdict of a restart that is complete."""
    replica = run.replicas[0]
    ended = replica.exit
    assert ended is not None
    outcome = Outcome.FAILED
    if ended.reason is Reason.COMPLETED:
        outcome = Outcome.SUCCEEDED
    elif _was_stopped(ended):
        outcome = Outcome.CANCELLED
    code = 0 if outcome is Outcome.SUCCEEDED else ended.code
    return Verdict(
        outcome=outcome,
        reason=ended.reason,
        message=sentence(replica.task, ended),
        replica=replica.task,
        exit_code=code if code is not None and 0 <= code <= 255 else 1,
        step=replica.step,
    )


class _Life(NamedTuple):
    run: RunSnapshot
    replica: ReplicaSnapshot


def _runs(job: JobSnapshot) -> tuple[RunSnapshot, ...]:
    return (job.run, *job.restarts) if job.run is not None else ()


def _lives(job: JobSnapshot, task: str) -> list[_Life]:
    return [_Life(run, replica) for run in _runs(job) for replica in run.replicas if replica.task == task]


def _starts_again(lives: list[_Life]) -> bool:
    """Whether the last life of an evaluator has ended, and another one follows if its gang goes on."""
    replica = lives[-1].replica
    ended = replica.exit
    if ended is None or ended.reason is Reason.COMPLETED or _was_stopped(ended):
        return False
    if len(lives) == 1 and (not replica.has_run or ended.reason in _NOT_STARTED):
        return False  # its gang has not started
    return _charged(lives) <= MOST_RESTARTS


def _was_stopped(ended: ExitReport) -> bool:
    """A restart that an engine does not start is stopped too, and tried again."""
    return ended.reason is Reason.STOPPED or (ended.after_stop and ended.reason not in _NOT_STARTED)


def _charged(lives: list[_Life]) -> int:
    """The ends that count: not those for which a machine was shut down or given to other work, or had no room."""
    return sum(_count(lives, fault) for fault in Fault if fault not in _FREE)


def _count(lives: list[_Life], fault: Fault) -> int:
    ends = (life.replica.exit for life in lives)
    return sum(end is not None and FAULTS[end.reason] is fault for end in ends)
