"""Retry rules: which rule decides about a failed run, and what follows."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.states import JobState, Reason, ReplicaState, RunState
from trainyard_protocol.wire.sync import ExitReport
from trainyard_server.domain.lifecycle import retries
from trainyard_server.domain.lifecycle.decisions import EndOfLog, RetryPolicy, Transition, step
from trainyard_server.domain.snapshots import JobSnapshot, ReplicaSnapshot, RunSnapshot

T0 = datetime(2026, 11, 20, tzinfo=UTC)
POLICY = RetryPolicy(retries=3, backoff_first_s=2, backoff_max_s=300)
MASTER = "master-replica-0"
ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
WATCHDOG = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"


def ended(reason: Reason, code: int | None, after_stop: bool = False) -> ReplicaSnapshot:
    how = ExitReport(code=code, reason=reason, message="", finished_at=T0, after_stop=after_stop)
    return ReplicaSnapshot(MASTER, ReplicaState.EXITED, "", T0, how, log_complete=True)


FAILED = ended(Reason.PROGRAM_ERROR, 33)


def job(replica: ReplicaSnapshot, *rules: dict[str, Any], used: tuple[int, ...] = (), has_rules: bool = True) -> Any:
    """A job whose run is to end. Without `has_rules` it has no `retry`."""
    scheduling = {"retry": list(rules)} if has_rules else {}
    return JobSnapshot(
        1,
        "p",
        "j",
        JobState.RUNNING,
        parse_training_input({"scheduling": scheduling}),
        gang=(),
        created_at=T0,
        queued_at=T0,
        run=RunSnapshot("r", 1 + len(used), RunState.STOPPING, (replica,)),
        rules_used=used,
    )


def next_of(current: JobSnapshot, *lines: str) -> Transition:
    assert current.run is not None
    matches = retries.log_matches(current, current.run.replicas[0], lines)
    transition = step(current, T0, POLICY, EndOfLog(lines, None, matches))
    assert transition is not None
    return transition


BY_CODE = {"exitCodes": [33, 34], "count": 3, "otherHost": True}
BY_LOG = {"log": "NCCL.*unhandled", "count": 2}


def test_rules_decide_by_the_first_that_matches_while_it_has_retries() -> None:
    """Each row: the end, the rules, the rules that were used, the log; the state, and the note of the verdict."""
    sigabrt, oom = ended(Reason.KILLED_BY_SIGNAL, 134), ended(Reason.OUT_OF_MEMORY, 137)
    again, over = JobState.QUEUED, JobState.FAILED
    rows: list[tuple[ReplicaSnapshot, list[dict[str, Any]], tuple[int, ...], str, JobState, str]] = [
        (FAILED, [BY_CODE], (1, 1), "", again, "retry 3 of 3."),
        (FAILED, [BY_CODE], (1, 1, 1), "", over, "(exitCodes: [33, 34]); its 3 retries are used up."),
        (FAILED, [{"exitCodes": [33]}], (1,), "", over, "its retry is used up."),
        (FAILED, [{"exitCodes": [1]}], (), "", over, ""),
        (FAILED, [BY_LOG, BY_CODE], (), "an NCCL error: unhandled cuda error", again, "The log matched retry rule 1 ("),
        (FAILED, [BY_LOG, BY_CODE], (), "another error", again, "Exit code 33 matched retry rule 2 ("),
        (FAILED, [BY_LOG, BY_CODE], (1, 1), "NCCL unhandled", over, "its 2 retries are used up."),
        (FAILED, [BY_CODE, BY_LOG], (2, 2), "NCCL unhandled", again, "Exit code 33 matched retry rule 1 ("),
        (FAILED, [BY_LOG], (), "NCCL\nunhandled", over, ""),
        # Otherwise a signal has the retries of infrastructure, and too little memory none.
        (sigabrt, [{"exitCodes": [134]}], (1,), "", over, "its retry is used up."),
        (sigabrt, [], (), "", again, ""),
        (oom, [{"exitCodes": [137]}], (), "", again, "Exit code 137 matched retry rule 1 ("),
        (oom, [], (), "", over, ""),
        (ended(Reason.START_FAILED, None), [{"log": "."}], (), "x", over, ""),
        (ended(Reason.HOST_LOST, None), [{"log": "."}], (), "x", again, ""),
    ]
    for replica, rules, used, log, state, note in rows:
        move = next_of(job(replica, *rules, used=used), *log.splitlines())
        assert move.verdict is not None
        assert (move.job, note in move.verdict.retry) == (state, True), (rules, used, log, move)
        assert bool(note) == bool(move.verdict.retry), (rules, used, log, move)


def test_job_without_rules_has_those_of_the_service_once_and_an_empty_list_has_none() -> None:
    abort, segfault = ended(Reason.KILLED_BY_SIGNAL, 134), ended(Reason.KILLED_BY_SIGNAL, 139)
    for replica, text in [(FAILED, ECC), (FAILED, WATCHDOG), (abort, WATCHDOG)]:
        move = next_of(job(replica, has_rules=False), "before", text)
        assert move.verdict is not None
        assert (move.job, move.verdict.other_host) == (JobState.QUEUED, True), text
        assert move.verdict.retry.startswith("The log matched the service's rule (log: "), text
    assert next_of(job(FAILED, has_rules=False, used=(1,)), ECC).job is JobState.FAILED
    assert next_of(job(FAILED), ECC).job is JobState.FAILED
    assert next_of(job(FAILED, has_rules=False), "torch.OutOfMemoryError: CUDA out of memory").job is JobState.FAILED
    # A signal has the retries of infrastructure afterwards, as it has without a match.
    for replica, used in [(abort, (2,)), (segfault, ())]:
        move = next_of(job(replica, has_rules=False, used=used), WATCHDOG)
        assert (move.job, move.retries_used) == (JobState.QUEUED, 1), replica


def test_job_without_retries_ends_with_its_run_once_that_was_running() -> None:
    """Each row: the end of the run, the job's state; the next state, and the note of the verdict."""
    lost, running, preparing = ended(Reason.HOST_LOST, None), JobState.RUNNING, JobState.PREPARING
    rows = [
        (lost, running, JobState.FAILED, retries.DISABLED),
        (ended(Reason.PREEMPTED, None), running, JobState.FAILED, retries.DISABLED),
        (ended(Reason.KILLED_BY_SIGNAL, 137), running, JobState.FAILED, retries.DISABLED),
        (FAILED, running, JobState.FAILED, ""),  # as without it
        (ended(Reason.COMPLETED, 0), running, JobState.SUCCEEDED, ""),
        (lost, preparing, JobState.QUEUED, ""),
        (ended(Reason.GIVEN_BACK, None), preparing, JobState.QUEUED, ""),
    ]
    wrong = []
    for replica, state, follows, note in rows:
        disabled = parse_training_input({"scheduling": {"disableRetries": True}})
        move = next_of(replace(job(replica, has_rules=False), state=state, training_input=disabled))
        found = move.job, move.verdict.retry if move.verdict is not None else None
        if found != (follows, note):
            wrong.append(f"{replica.exit}: {found}")
    assert not wrong, "\n".join(wrong)
    ecc = next_of(replace(job(FAILED, has_rules=False), training_input=disabled), ECC)
    assert ecc.job is JobState.FAILED
    with pytest.raises(InvalidArgument, match="retry and disableRetries"):
        parse_training_input({"scheduling": {"disableRetries": True, "retry": [BY_CODE]}})


def test_exit_codes_that_a_rule_retries_are_known_at_the_start_of_a_run() -> None:
    rows: list[tuple[list[dict[str, Any]], tuple[int, ...], tuple[int, ...]]] = [
        ([], (), ()),
        ([BY_CODE], (1, 1), (33, 34)),
        ([BY_CODE], (1, 1, 1), ()),
        ([{"exitCodes": [33]}, {"exitCodes": [33, 1]}], (1,), (1,)),
        ([{"exitCodes": [1]}, BY_LOG, BY_CODE], (), (1,)),
    ]
    for rules, used, codes in rows:
        given = parse_training_input({"scheduling": {"retry": rules}})
        assert retries.retried_codes(given, used) == codes, rules
    assert retries.retried_codes(parse_training_input({}), ()) == ()


def test_pattern_that_is_none_of_re2_is_refused_with_its_place() -> None:
    bad = [{"log": "ok"}, {"log": "(a"}, {"log": "(?=b)"}]
    with pytest.raises(InvalidArgument) as caught:
        retries.check_patterns(parse_training_input({"scheduling": {"retry": bad}}))
    fields = [violation.field for violation in caught.value.violations]
    assert fields == ["scheduling.retry[1].log", "scheduling.retry[2].log"]
    assert "it is not a regular expression of RE2: missing ): (a" in caught.value.violations[0].description
