from datetime import timedelta

from trainyard_protocol.answers.jobs import Verdict
from trainyard_protocol.states import Outcome, Reason
from trainyard_server.domain.scheduling.blame import (
    WINDOW,
    HostFailure,
    avoided_until,
    drain_reason,
    is_alone,
    with_failure,
)
from unit.server.domain.scheduling.queue_support import NOW

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
