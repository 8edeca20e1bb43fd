"""Restarts of evaluators: what follows from an evaluator's end."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from trainyard_protocol.job.training_input import parse_training_input
from trainyard_protocol.states import JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.wire.sync import ExitReport
from trainyard_server.domain.lifecycle.decisions import RetryPolicy, Transition, decider, step
from trainyard_server.domain.snapshots import JobSnapshot, ReplicaSnapshot, RunSnapshot

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
POLICY = RetryPolicy(retries=2, backoff_first_s=1, backoff_max_s=3)
MASTER, EVALUATOR = "master-replica-0", "evaluator-replica-0"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def up(task: str) -> ReplicaSnapshot:
    return ReplicaSnapshot(task, ReplicaState.RUNNING, started_at=T0)


def ended(
    task: str, reason: Reason, seconds: float = 1, *, after_stop: bool = False, started: bool = True
) -> ReplicaSnapshot:
    code = {Reason.COMPLETED: 0, Reason.PROGRAM_ERROR: 3}.get(reason)
    exit_ = ExitReport(code=code, reason=reason, message="", finished_at=at(seconds), after_stop=after_stop)
    started_at = T0 if started else None
    return ReplicaSnapshot(task, ReplicaState.EXITED, started_at=started_at, exit=exit_, log_complete=True)


def alone(number: int, replica: ReplicaSnapshot, state: RunState = RunState.ENDED) -> RunSnapshot:
    return RunSnapshot(f"r{number}", number, state, (replica,))


def job(
    *gang: ReplicaSnapshot,
    restarts: tuple[RunSnapshot, ...] = (),
    run: RunState = RunState.RUNNING,
    state: JobState = JobState.RUNNING,
) -> JobSnapshot:
    live = RunSnapshot("r1", 1, run, gang)
    parsed = parse_training_input({})
    return JobSnapshot(1, "p", "j", state, parsed, (), T0, T0, run=live, restarts=restarts)


def next_move(current: JobSnapshot, seconds: float) -> Transition:
    """The next transition, which there must be."""
    transition = step(current, at(seconds), POLICY)
    assert transition is not None
    return transition


@pytest.mark.parametrize(
    ("reason", "restarts"),
    [
        (Reason.PROGRAM_ERROR, "starts again, alone (restart 1 of 5)."),
        (Reason.OUT_OF_MEMORY, "starts again, alone (restart 1 of 5)."),
        (Reason.KILLED_BY_SIGNAL, "starts again, alone (restart 1 of 5)."),
        (Reason.VANISHED, "starts again, alone (restart 1 of 5)."),
        (Reason.PREEMPTED, "starts again, alone."),
        (Reason.COMPLETED, ""),
        (Reason.STOPPED, ""),
    ],
)
def test_evaluator_that_fails_starts_again_alone_after_a_pause(reason: Reason, restarts: str) -> None:
    failed = job(up(MASTER), ended(EVALUATOR, reason))
    assert decider(failed) is None
    early, due = step(failed, at(1.5), POLICY), step(failed, at(2), POLICY)
    assert (early is None) is (reason is not Reason.PREEMPTED)
    assert due is None if not restarts else due is not None
    if due is not None:
        assert due.restart == (EVALUATOR, f"The replica evaluator 0 {restarts}")
        assert (due.run, due.job) == (None, None)


def test_restart_ends_with_its_gang_which_waits_for_it() -> None:
    done, crash = ended(MASTER, Reason.COMPLETED, 5), ended(EVALUATOR, Reason.PROGRAM_ERROR)
    live = alone(2, up(EVALUATOR), RunState.RUNNING)
    decided = job(done, crash, restarts=(live,), run=RunState.STOPPING)
    stops = next_move(decided, 9)
    assert (stops.of_restart, stops.run) == ("r2", RunState.STOPPING)
    live = replace(live, state=RunState.STOPPING)
    assert step(replace(decided, restarts=(live,)), at(9), POLICY) is None
    for reason, outcome in ((Reason.STOPPED, Outcome.CANCELLED), (Reason.COMPLETED, Outcome.SUCCEEDED)):
        over = replace(live, replicas=(ended(EVALUATOR, reason, 6, after_stop=True),))
        ends = next_move(replace(decided, restarts=(over,)), 9)
        assert ends.verdict is not None
        assert (ends.of_restart, ends.run, ends.verdict.outcome) == ("r2", RunState.ENDED, outcome)
    last = next_move(replace(decided, restarts=(replace(over, state=RunState.ENDED),)), 9)
    assert last.job is JobState.SUCCEEDED
