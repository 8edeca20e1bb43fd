"""Which ends of a gang are told when, and in which order."""

from datetime import UTC, datetime

from trainyard_agent.engines.kubernetes.pods.ends import SETTLE_S, EndOrder
from trainyard_agent.engines.kubernetes.pods.status import PodState
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.sync import ExitReport

START = datetime(2026, 1, 1, tzinfo=UTC)


def ended(second: int) -> PodState:
    at = START.replace(second=second)
    exit_ = ExitReport(code=1, reason=Reason.PROGRAM_ERROR, message="", finished_at=at)
    return PodState(ReplicaState.EXITED, START, exit_)


def last_line(task: str, several: bool) -> tuple[str, int]:
    return {"chief": ".7", "worker": ".2", "silent": ""}[task] if several else "", 0


def test_end_is_told_once_all_earlier_ones_must_be_known() -> None:
    ends, runs = EndOrder(), PodState(ReplicaState.RUNNING, START)
    assert ends.due({"chief": ended(6), "worker": runs}, 100.0, last_line) == []
    seen_later = {"chief": ended(6), "worker": ended(5), "silent": runs}
    assert ends.due(seen_later, 100.9, last_line) == []
    assert ends.due(seen_later, 100.0 + SETTLE_S, last_line) == ["worker", "chief"]


def test_ends_of_one_second_are_in_the_order_of_their_last_lines() -> None:
    gang = {"chief": ended(5), "worker": ended(5), "silent": ended(5)}
    assert EndOrder().due(gang, 0.0, last_line) == ["silent", "worker", "chief"]
