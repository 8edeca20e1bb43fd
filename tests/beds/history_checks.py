"""Invariants of the history of every job."""

from typing import Any

from trainyard_protocol.answers.jobs import JobDetail, ReplicaView, RunView
from trainyard_protocol.states import (
    FAULTS,
    JOB_MOVES,
    REPLICA_MOVES,
    RUN_MOVES,
    Fault,
    JobState,
    Outcome,
    Reason,
    ReplicaState,
    RunState,
)


def check_history(detail: JobDetail) -> None:
    """Every move is in its table, follows the one before, and the last is where we are."""
    assert [event.number for event in detail.events] == list(range(1, len(detail.events) + 1))
    at: dict[tuple[object, ...], Any] = {("job",): JobState.QUEUED}
    for event in detail.events:
        if not event.after:
            continue
        key: tuple[object, ...]
        kind: Any
        table: Any
        match event.kind:
            case "job":
                key, kind, table = ("job",), JobState, JOB_MOVES
            case "run":
                key, kind, table = ("run", event.run), RunState, RUN_MOVES
            case _:
                key, kind, table = ("replica", event.run, event.task), ReplicaState, REPLICA_MOVES
        first: Any = next(iter(kind))
        assert at.get(key, first) == event.before
        assert kind(event.after) in table[kind(event.before)]
        at[key] = kind(event.after)
    assert at["job",] == detail.state
    for gang in detail.runs:
        for run in (gang, *gang.restarts):
            assert at.get(("run", run.number), RunState.PREPARING) == run.state
            for replica in run.replicas:
                assert at.get(("replica", run.number, replica.task), ReplicaState.PENDING) == replica.state


def check_ending(detail: JobDetail, *, is_clock_steady: bool = True) -> None:
    """Every run has ended, all but the last in vain, and the job says why. `is_clock_steady`: the server's clock was
    never set."""
    for gang in detail.runs:
        for run in (gang, *gang.restarts):
            assert run.state is RunState.ENDED
            assert run.verdict is not None
            assert all(replica.state is ReplicaState.EXITED for replica in run.replicas)
        _check_restarts(gang, is_clock_steady=is_clock_steady)
    outcomes = [run.verdict.outcome for run in detail.runs if run.verdict]
    assert all(outcome is Outcome.FAILED for outcome in outcomes[:-1])
    assert all(FAULTS[run.verdict.reason] is not Fault.USER for run in detail.runs[:-1] if run.verdict)
    if detail.state in (JobState.FAILED, JobState.CANCELLED):
        assert detail.job["errorMessage"]
    if detail.state is JobState.SUCCEEDED and not detail.is_study:
        assert outcomes[-1] is Outcome.SUCCEEDED


def _check_restarts(gang: RunView, *, is_clock_steady: bool) -> None:
    """Each restart follows a failure of its evaluator, and lies within the run of its gang."""
    lives: dict[str, list[ReplicaView]] = {}
    for run in (gang, *gang.restarts):
        for replica in run.replicas:
            lives.setdefault(replica.task, []).append(replica)
        assert run.ended_at is not None
        assert gang.ended_at is not None
        if is_clock_steady:
            assert gang.created_at <= run.created_at
            assert run.ended_at <= gang.ended_at
    for task, of_task in lives.items():
        assert len(of_task) == 1 or task.startswith("evaluator"), f"{task} was started again alone"
        reasons = [replica.reason for replica in of_task[:-1]]
        assert all(reason and reason not in (Reason.COMPLETED, Reason.STOPPED) for reason in reasons)
