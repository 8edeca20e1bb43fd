from dataclasses import replace
from datetime import timedelta

import pytest

from trainyard_protocol.states import Outcome, Reason
from trainyard_protocol.views.views import Verdict
from trainyard_server.domain.scheduling.blame import (
    WINDOW,
    HostFailure,
    avoided_until,
    drain_reason,
    is_alone,
    with_failure,
)
from trainyard_server.domain.scheduling.scheduler import plan
from unit.server.domain.scheduling.queue_support import NOW, agent, only, queued

MINUTE = timedelta(minutes=1)


def failed(reason: Reason, code: int = 1) -> HostFailure | None:
    verdict = Verdict(outcome=Outcome.FAILED, reason=reason, message="", exit_code=code)
    return HostFailure.of("p/a", verdict, NOW)


def counted(*failures: tuple[float, str]) -> tuple[HostFailure, ...]:
    """The failures that count, of those after so many minutes, of these jobs."""
    result: tuple[HostFailure, ...] = ()
    for minutes, job in failures:
        result = with_failure(result, HostFailure(NOW + minutes * MINUTE, job, Reason.HOST_FAILED))
    return result


def test_only_what_a_machine_does_to_its_runs_is_its_fault() -> None:
    blamed = {reason for reason in Reason if failed(reason) is not None}
    assert blamed == {Reason.HOST_FAILED, Reason.HOST_LOST, Reason.VANISHED}
    assert failed(Reason.KILLED_BY_SIGNAL, 139) is None, "a segmentation fault is the program's"
    assert failed(Reason.KILLED_BY_SIGNAL, 137) is not None
    stored = HostFailure(NOW, "p/a", "HOST_LOST").stored()
    assert HostFailure.read(stored) == HostFailure(NOW, "p/a", "HOST_LOST")


@pytest.mark.parametrize(
    ("failures", "jobs"),
    [
        (((0, "p/a"), (10, "p/b"), (20, "p/c")), ["p/a", "p/b", "p/c"]),
        (((0, "p/a"), (10, "p/a"), (20, "p/a")), ["p/a"]),  # its own fault, perhaps
        (((0, "p/a"), (0.5, "p/b"), (0.9, "p/c")), ["p/a"]),  # a machine that is lost loses all its runs
        (((0, "p/a"), (10, "p/b"), (65, "p/c")), ["p/b", "p/c"]),
        (((0, "p/a"), (1, "p/b"), (2, "p/c"), (3, "p/d")), ["p/b", "p/c", "p/d"]),
        (((10, "p/a"), (0, "p/b")), ["p/b"]),  # the clock was set back
    ],
)
def test_jobs_and_causes_count_once_and_for_an_hour(failures: tuple[tuple[float, str], ...], jobs: list[str]) -> None:
    assert [failure.job for failure in counted(*failures)] == jobs


def test_second_failure_lets_retries_avoid_the_machine_and_the_third_drains_it() -> None:
    two, three = counted((0, "p/a"), (10, "p/b")), counted((0, "p/a"), (10, "p/b"), (20, "p/c"))
    assert (avoided_until(two[:1]), drain_reason(two)) == (None, "")
    assert avoided_until(two) == NOW + WINDOW
    assert drain_reason(three) == (
        "3 runs failed of it within an hour: p/a (HOST_FAILED), p/b (HOST_FAILED), p/c (HOST_FAILED)"
    )


def test_machine_is_drained_only_where_most_others_do_not_fail() -> None:
    failed = counted((0, "p/a"))
    table: dict[tuple[tuple[HostFailure, ...], ...], bool] = {
        (): False,
        ((),): True,
        (failed,): False,
        ((), failed): True,
        ((), failed, failed): False,
    }
    assert {others: is_alone(others, NOW + MINUTE) for others in table} == table
    assert is_alone([failed], NOW + WINDOW)


def test_retries_wait_for_another_machine_while_new_jobs_start_there() -> None:
    until = NOW + timedelta(minutes=30)
    bad, other = agent("a", 2, avoided_until=until), agent("b", 4)
    retry = queued(1, backoff_until=NOW - MINUTE)
    assert only(plan([queued(1)], [bad, other], NOW)).agent_id == "a"
    assert only(plan([retry], [bad, other], NOW)).agent_id == "b"
    assert only(plan([retry], [bad, other], until)).agent_id == "a"
    assert only(plan([retry], [bad], NOW)).agent_id == "a", "there is no other"
    waiting = plan([replace(retry, key=2), replace(retry, key=3)], [bad, replace(other, capacity=bad.capacity)], NOW)
    assert waiting.waiting == {} or "is avoided until" in next(iter(waiting.waiting.values())).reason
