from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.states import JOB_MOVES, RUN_MOVES, JobState, Outcome, Reason, ReplicaState, RunState
from trainyard_protocol.wire.observations import Stall
from trainyard_protocol.wire.sync import ExitReport, ReplicaReport, RunReport
from trainyard_server.domain.lifecycle import messages
from trainyard_server.domain.lifecycle.causes import Cause
from trainyard_server.domain.lifecycle.decisions import (
    EndOfLog,
    RetryPolicy,
    Transition,
    decider,
    observe,
    step,
    verdict_of,
)
from trainyard_server.domain.snapshots import JobSnapshot, Reached, ReplicaSnapshot, RunSnapshot

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
POLICY = RetryPolicy(retries=2, backoff_first_s=1, backoff_max_s=3)
MASTER, WORKER, PS, EVALUATOR = "master-replica-0", "worker-replica-0", "ps-replica-0", "evaluator-replica-0"


def after(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def ended(
    task: str,
    reason: Reason,
    code: int | None = None,
    at: float = 1,
    after_stop: bool = False,
    log: bool = True,
    order: int = 0,
) -> ReplicaSnapshot:
    report = ExitReport(
        code=code, reason=reason, message="why.", finished_at=after(at), after_stop=after_stop, order=order
    )
    return ReplicaSnapshot(task, ReplicaState.EXITED, started_at=T0, exit=report, log_complete=log)


def up(task: str) -> ReplicaSnapshot:
    return ReplicaSnapshot(task, ReplicaState.RUNNING, started_at=T0)


def done(task: str, at: float = 1) -> ReplicaSnapshot:
    return ended(task, Reason.COMPLETED, 0, at)


def crashed(task: str, code: int = 1, at: float = 1, order: int = 0) -> ReplicaSnapshot:
    return ended(task, Reason.PROGRAM_ERROR, code, at, order=order)


def killed(task: str, code: int, at: float = 1, order: int = 0) -> ReplicaSnapshot:
    return ended(task, Reason.KILLED_BY_SIGNAL, code, at, order=order)


def stopped(task: str, at: float = 2) -> ReplicaSnapshot:
    return ended(task, Reason.STOPPED, 143, at, after_stop=True)


def job(
    *replicas: ReplicaSnapshot, state: JobState = JobState.RUNNING, run: RunState = RunState.STOPPING, **scheduling: str
) -> JobSnapshot:
    live = RunSnapshot("r", 1, run, replicas) if replicas else None
    started_at = T0 if run is RunState.RUNNING else None
    return JobSnapshot(
        1,
        "p",
        "j",
        state,
        parse_training_input({"scheduling": {"maxRunningTime": "3600s"} | scheduling}),
        gang=(),
        created_at=T0,
        queued_at=T0,
        started_at=started_at,
        run=live,
        stop_message="Stopped.",
    )


def next_move(current: JobSnapshot, at: float = 0, lines: Sequence[str] = ()) -> Transition:
    """The next transition, which there must be."""
    transition = step(current, after(at), POLICY, EndOfLog(tuple(lines)))
    assert transition is not None
    return transition


def test_step_stops_a_run_as_soon_as_it_is_decided() -> None:
    stops = [
        (done(MASTER), up(WORKER)),
        (up(MASTER), crashed(WORKER)),
        (up(MASTER), ended(WORKER, Reason.HOST_SHUTDOWN, after_stop=True)),
        (stopped(MASTER), stopped(WORKER)),
    ]
    goes_on = [
        (up(MASTER), done(WORKER)),
        (up(MASTER), done(EVALUATOR)),
        (up(MASTER), crashed(EVALUATOR)),
        (up(MASTER), done(PS)),
        (up(MASTER), stopped(WORKER)),
        (ReplicaSnapshot(MASTER, ReplicaState.UNKNOWN), up(WORKER)),
    ]
    for replicas in stops:
        assert next_move(job(*replicas, run=RunState.RUNNING)).run is RunState.STOPPING, replicas
    for replicas in goes_on:
        move = step(job(*replicas, run=RunState.RUNNING), T0, POLICY)
        assert move is None or move.run is None, replicas


def test_step_does_not_end_a_run_that_still_lives_or_logs() -> None:
    for replicas in (
        (done(MASTER), up(WORKER)),
        (done(MASTER), ReplicaSnapshot(WORKER, ReplicaState.UNKNOWN)),
        (ended(MASTER, Reason.COMPLETED, 0, log=False),),
    ):
        assert step(job(*replicas), T0, POLICY) is None, replicas


VERDICTS = [
    ((done(MASTER), stopped(WORKER)), Reason.COMPLETED, MASTER, 0),
    ((done(MASTER, 1), crashed(WORKER, 3, 2)), Reason.COMPLETED, MASTER, 0),
    ((done(MASTER, 2), crashed(WORKER, 3, 1)), Reason.PROGRAM_ERROR, WORKER, 3),
    ((crashed(MASTER, 1, 2), crashed(WORKER, 3, 1)), Reason.PROGRAM_ERROR, WORKER, 3),
    ((crashed(MASTER, 1, 1), crashed(WORKER, 3, 1)), Reason.PROGRAM_ERROR, MASTER, 1),
    ((done(WORKER, 0), crashed(MASTER, 5, 1)), Reason.PROGRAM_ERROR, MASTER, 5),
    # Within one second of a coarse clock.
    ((crashed(MASTER, 1, 1.1, order=2), crashed(WORKER, 3, 1.9, order=1)), Reason.PROGRAM_ERROR, WORKER, 3),
    ((crashed(MASTER, 1, 1.9, order=2), crashed(WORKER, 3, 2, order=1)), Reason.PROGRAM_ERROR, MASTER, 1),
    ((ended(MASTER, Reason.START_FAILED, None), stopped(WORKER)), Reason.START_FAILED, MASTER, 1),
    ((killed(WORKER, 137), stopped(MASTER)), Reason.KILLED_BY_SIGNAL, WORKER, 137),
    ((ended(MASTER, Reason.HOST_LOST, at=5, after_stop=True), stopped(WORKER)), Reason.HOST_LOST, MASTER, 1),
    # The worker lost its peer to the preemption, and ended first.
    ((ended(MASTER, Reason.PREEMPTED, 143, 9), crashed(WORKER, 3, 1)), Reason.PREEMPTED, MASTER, 143),
    # The worker was killed, and its peer failed of that and ended first.
    ((crashed(MASTER, 1, 1.0), killed(WORKER, 137, 1.01)), Reason.KILLED_BY_SIGNAL, WORKER, 137),
    # The runtime orders the ends itself.
    ((crashed(MASTER, 1, 1, order=1), killed(WORKER, 137, 1, order=2)), Reason.PROGRAM_ERROR, MASTER, 1),
    # Killed much later: a consequence.
    ((crashed(MASTER, 1, 1), killed(WORKER, 137, 3)), Reason.PROGRAM_ERROR, MASTER, 1),
    # An abort may be a consequence.
    ((crashed(MASTER, 1, 1), killed(WORKER, 134, 1.01)), Reason.PROGRAM_ERROR, MASTER, 1),
    ((done(MASTER, 1), ended(WORKER, Reason.PREEMPTED, 143, 2)), Reason.COMPLETED, MASTER, 0),
    (
        (ended(MASTER, Reason.PREEMPTED, 143, 2, after_stop=True), crashed(WORKER, 3, 1)),
        Reason.PROGRAM_ERROR,
        WORKER,
        3,
    ),
    ((done(MASTER), ended(WORKER, Reason.HOST_SHUTDOWN, 143, 2, after_stop=True)), Reason.COMPLETED, MASTER, 0),
    ((stopped(MASTER), stopped(WORKER)), Reason.VANISHED, "", 1),
]


def test_verdict_is_the_first_deciding_exit_by_the_replicas_clocks() -> None:
    wrong = {}
    for replicas, *expected in VERDICTS:
        verdict = verdict_of(job(*replicas), EndOfLog(("last",)))
        outcome = Outcome.SUCCEEDED if verdict.reason is Reason.COMPLETED else Outcome.FAILED
        assert verdict.outcome is outcome
        if [verdict.reason, verdict.replica, verdict.exit_code] != expected:
            wrong[str(replicas)] = verdict
    assert not wrong


def test_verdict_of_a_denied_permission_says_whom_the_program_ran_as() -> None:
    report = crashed(MASTER).exit
    assert report is not None
    of_container = report.model_copy(update={"message": "It exited with 1. It ran as user 7:7. (User)"})
    replica = replace(crashed(MASTER), exit=of_container)
    for text, hint in (("[Errno 13] Permission denied: '/opt'", " It ran as user 7:7. (User)"), ("no data", "")):
        verdict = verdict_of(job(replica), EndOfLog(cause=Cause(text)))
        start = "The replica master 0 exited with a non-zero status of 1."
        assert (verdict.message, verdict.cause) == (f"{start}{hint} {text}", text)


def test_step_ends_a_cancelled_job_as_it_had_truly_ended() -> None:
    cancelled = (
        *(stopped(MASTER), killed(MASTER, 137), ended(MASTER, Reason.HOST_SHUTDOWN, 143)),
        *(ended(MASTER, Reason.HOST_LOST), ended(MASTER, Reason.TIME_LIMIT)),
        ended(MASTER, Reason.GIVEN_BACK, after_stop=True),
    )
    rows = [
        (done(MASTER), JobState.SUCCEEDED),
        (crashed(MASTER), JobState.FAILED),
        (ended(MASTER, Reason.REFUSED), JobState.FAILED),
        *((replica, JobState.CANCELLED) for replica in cancelled),
    ]
    for replica, state in rows:
        move = next_move(job(replica, state=JobState.CANCELLING))
        assert (move.run, move.job) == (RunState.ENDED, state), replica
        assert state is not JobState.CANCELLED or move.error_message == "Stopped."


def test_infrastructure_failure_gets_a_new_run_after_a_pause_while_there_is_a_budget() -> None:
    lost = job(ended(MASTER, Reason.VANISHED))
    for used, pause in ((0, 1), (1, 2)):
        move = next_move(replace(lost, retries_used=used))
        assert (move.job, move.backoff_until, move.retries_used) == (JobState.QUEUED, after(pause), used + 1)
    move = next_move(replace(lost, retries_used=2), lines=("x",))
    assert move.job is JobState.FAILED
    assert move.error_message == "The replica master 0 vanished without an exit status. why.\nx"


def test_time_limit_costs_a_retry_only_where_its_run_got_no_further() -> None:
    """It decides above the failures of its peers, which may follow from it."""
    before = Reached(checkpoint=100, step=120)
    wrong = {}
    for checkpoint, last, used, expected in (
        (100, 120, 0, (JobState.QUEUED, 1)),
        (100, 120, 1, (JobState.QUEUED, 2)),
        (None, None, 2, (JobState.FAILED, None)),
        (101, 119, 2, (JobState.QUEUED, 0)),
        (100, 121, 2, (JobState.QUEUED, 0)),
        (100, 121, 0, (JobState.QUEUED, 0)),
    ):
        limited = replace(ended(MASTER, Reason.TIME_LIMIT, 143, at=2), step=last, durable_step=checkpoint)
        current = replace(job(crashed(WORKER, at=1.5), limited), retries_used=used, reached_before=before)
        taken = step(current, T0, POLICY)
        assert taken is not None
        assert taken.verdict is not None
        assert taken.verdict.message == "The replica master 0 reached a time limit. why."
        if (taken.job, taken.retries_used) != expected:
            wrong[checkpoint, last, used] = (taken.job, taken.retries_used)
    assert not wrong


def test_preemption_of_a_run_that_got_further_gives_its_job_the_whole_budget_again() -> None:
    preempted = replace(ended(MASTER, Reason.PREEMPTED), step=9)
    move = next_move(replace(job(preempted), retries_used=2))
    assert (move.job, move.retries_used) == (JobState.QUEUED, 0)


def test_backoff_doubles_up_to_the_longest() -> None:
    policy = RetryPolicy(9, 1, 60)
    assert [policy.backoff_s(n) for n in (1, 2, 3, 6, 7, 10_000)] == [1, 2, 4, 32, 60, 60]


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize(
    ("state", "run"),
    [
        (JobState.PREPARING, RunState.PREPARING),
        (JobState.PREPARING, RunState.STOPPING),
        (JobState.RUNNING, RunState.RUNNING),
        (JobState.RUNNING, RunState.STOPPING),
        (JobState.CANCELLING, RunState.PREPARING),
        (JobState.CANCELLING, RunState.RUNNING),
        (JobState.CANCELLING, RunState.STOPPING),
    ],
)
def test_every_step_is_legal_and_leads_to_an_end(reason: Reason, state: JobState, run: RunState) -> None:
    current = job(ended(MASTER, reason, 1), state=state, run=run)
    for _ in range(6):
        taken = step(current, T0, POLICY)
        if taken is None:
            break
        assert current.run is not None
        if taken.run is not None:
            assert taken.run in RUN_MOVES[current.run.state]
        if taken.job is not None:
            assert taken.job in JOB_MOVES[current.state]
        next_run = replace(current.run, state=taken.run or current.run.state)
        current = replace(
            current, state=taken.job or current.state, run=None if next_run.state is RunState.ENDED else next_run
        )
    assert current.run is None
    assert current.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.QUEUED)


def test_every_reason_has_a_sentence_that_names_the_replica_as_the_service_did() -> None:
    rows = [
        (crashed(WORKER, 3), "The replica worker 0 exited with a non-zero status of 3."),
        (killed(WORKER, 137), "The replica worker 0 was killed by signal 9 (SIGKILL)."),
        (killed(WORKER, 128 + 63), "The replica worker 0 was killed by signal 63."),
        (
            ended(MASTER, Reason.OUT_OF_MEMORY, 137),
            "The replica master 0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL). why.",
        ),
        (ended(WORKER, Reason.STOPPED, 143), "The replica worker 0 was stopped."),
        (
            ended(WORKER, Reason.STOPPED, 137),
            "The replica worker 0 was stopped, and killed at the end of its grace period.",
        ),
        (ended(MASTER, Reason.START_FAILED), "The replica master 0 could not be started: why."),
        *((ended(WORKER, reason, 1), "The replica worker 0 ") for reason in Reason),
    ]
    for replica, says in rows:
        assert replica.exit is not None
        assert messages.sentence(replica.task, replica.exit).startswith(says)


def report(**given: object) -> RunReport:
    return RunReport(run_id="r", replicas=(ReplicaReport.model_validate({"task": MASTER} | given),))


def test_observe_takes_only_what_is_news() -> None:
    rows = [
        (ReplicaState.PENDING, ReplicaState.RUNNING, [ReplicaState.RUNNING]),
        (ReplicaState.STARTING, ReplicaState.PENDING, []),
        (ReplicaState.RUNNING, ReplicaState.STARTING, []),
        (ReplicaState.RUNNING, ReplicaState.RUNNING, []),
        (ReplicaState.UNKNOWN, ReplicaState.STARTING, [ReplicaState.STARTING]),
        (ReplicaState.RUNNING, ReplicaState.UNKNOWN, []),
    ]
    for before, reported, becomes in rows:
        run = RunSnapshot("r", 1, RunState.PREPARING, (ReplicaSnapshot(MASTER, before),))
        changes = observe(run, report(state=reported), T0)
        assert [change.after for change in changes] == becomes, (before, reported)
    for replicas in ((crashed(MASTER),), ()):
        run = RunSnapshot("r", 1, RunState.RUNNING, replicas)
        assert observe(run, report(state=ReplicaState.RUNNING), T0) == []
    pending = ReplicaState.PENDING
    run = RunSnapshot("r", 1, RunState.PREPARING, (ReplicaSnapshot(MASTER, pending),))
    (change,) = observe(run, report(state=pending, address="h:1"), T0)
    assert (change.before, change.after, change.address) == (pending, pending, "h:1")


def stalled_replica(task: str, step: int = 7) -> ReplicaSnapshot:
    stall = Stall(step=step, since=T0, limit_s=300, for_s=301, longest_s=2)
    return replace(up(task), step=step, stall=stall)


def stalled_run(*replicas: ReplicaSnapshot) -> JobSnapshot:
    """A run that is being stopped because its worker stood still."""
    before = job(up(MASTER), stalled_replica(WORKER), run=RunState.RUNNING)
    move = next_move(before)
    stopping = job(*replicas)
    assert stopping.run is not None
    return replace(stopping, run=replace(stopping.run, stalled=move.verdict))


@pytest.mark.parametrize(
    ("replicas", "reason", "replica"),
    [
        ((stopped(MASTER), stopped(WORKER)), Reason.STALLED, WORKER),
        ((crashed(MASTER), stopped(WORKER)), Reason.STALLED, WORKER),  # of what it waited for
        ((killed(MASTER, 134), stopped(WORKER)), Reason.STALLED, WORKER),
        ((stopped(MASTER), done(WORKER)), Reason.STALLED, WORKER),
        ((done(MASTER), stopped(WORKER)), Reason.COMPLETED, MASTER),  # it had ended well after all
        ((ended(MASTER, Reason.HOST_SHUTDOWN, after_stop=True), stopped(WORKER)), Reason.HOST_SHUTDOWN, MASTER),
    ],
)
def test_verdict_of_a_run_that_was_stopped_for_standing_still(
    replicas: tuple[ReplicaSnapshot, ...], reason: Reason, replica: str
) -> None:
    run = stalled_run(*replicas)
    verdict = verdict_of(run, EndOfLog(("last",)))
    assert (verdict.reason, verdict.replica) == (reason, replica)
    move = next_move(run, lines=["last"])
    assert move.job is (JobState.SUCCEEDED if reason is Reason.COMPLETED else JobState.QUEUED)
    if reason is Reason.STALLED:
        assert verdict.last_lines == ("last",)
        assert move.retries_used == 1
        assert move.backoff_until == after(1)


def on(part: str, replica: ReplicaSnapshot, error_s: float) -> ReplicaSnapshot:
    """The replica in a part of its run, whose clock may be wrong by so much."""
    assert replica.exit is not None
    return replace(replica, part=part, exit=replica.exit.model_copy(update={"error_s": error_s}))


@pytest.mark.parametrize(
    ("worker_at", "error_s", "first"),
    [
        (0.90, 0.04, WORKER),  # it was the first, however wrong both clocks are
        (0.93, 0.04, MASTER),  # nobody knows: the first in the gang
        (1.07, 0.04, MASTER),
        (0.99, 0.0, WORKER),
    ],
)
def test_first_failure_of_two_machines_is_known_as_far_as_their_clocks_are(
    worker_at: float, error_s: float, first: str
) -> None:
    gang = on("a", crashed(MASTER, 1, 1), error_s), on("b", crashed(WORKER, 3, worker_at), error_s)
    replica = decider(job(*gang))
    assert replica is not None
    assert replica.task == first


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
    failed = job(up(MASTER), ended(EVALUATOR, reason), run=RunState.RUNNING)
    assert decider(failed) is None
    early, due = step(failed, after(1.5), POLICY), step(failed, after(2), POLICY)
    assert (early is None) is (reason is not Reason.PREEMPTED)
    assert due is None if not restarts else due is not None
    if due is not None:
        assert due.restart == (EVALUATOR, f"The replica evaluator 0 {restarts}")
        assert (due.run, due.job) == (None, None)


def test_restart_of_an_evaluator_ends_with_its_gang_which_waits_for_it() -> None:
    live = RunSnapshot("r2", 2, RunState.RUNNING, (up(EVALUATOR),))
    decided = replace(job(done(MASTER, 5), crashed(EVALUATOR, 3)), restarts=(live,))
    stops = next_move(decided, 9)
    assert (stops.of_restart, stops.run) == ("r2", RunState.STOPPING)
    live = replace(live, state=RunState.STOPPING)
    assert step(replace(decided, restarts=(live,)), after(9), POLICY) is None
    for reason, outcome in ((Reason.STOPPED, Outcome.CANCELLED), (Reason.COMPLETED, Outcome.SUCCEEDED)):
        code = 0 if reason is Reason.COMPLETED else None
        over = replace(live, replicas=(ended(EVALUATOR, reason, code, 6, after_stop=True),))
        ends = next_move(replace(decided, restarts=(over,)), 9)
        assert ends.verdict is not None
        assert (ends.of_restart, ends.run, ends.verdict.outcome) == ("r2", RunState.ENDED, outcome)
    last = next_move(replace(decided, restarts=(replace(over, state=RunState.ENDED),)), 9)
    assert last.job is JobState.SUCCEEDED
