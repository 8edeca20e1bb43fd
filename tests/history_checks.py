"""Invariants of the history of every job."""

from typing import Any

from trainyard_protocol.states import (
    JOB_MOVES,
    REPLICA_MOVES,
    RUN_MOVES,
    JobState,
    Outcome,
    ReplicaState,
    RunState,
)
from trainyard_protocol.views import JobDetail


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
    for run in detail.runs:
        assert at.get(("run", run.number), RunState.PREPARING) == run.state
        for replica in run.replicas:
            assert at.get(("replica", run.number, replica.task), ReplicaState.PENDING) == replica.state


def check_ending(detail: JobDetail) -> None:
    """Every run has ended, all but the last in vain, and the job says why."""
    for run in detail.runs:
        assert run.state is RunState.ENDED
        assert run.verdict is not None
        assert all(replica.state is ReplicaState.EXITED for replica in run.replicas)
    outcomes = [run.verdict.outcome for run in detail.runs if run.verdict]
    assert all(outcome is Outcome.FAILED for outcome in outcomes[:-1])
    if detail.state in (JobState.FAILED, JobState.CANCELLED):
        assert detail.job["errorMessage"]
    if detail.state is JobState.SUCCEEDED:
        assert outcomes[-1] is Outcome.SUCCEEDED
