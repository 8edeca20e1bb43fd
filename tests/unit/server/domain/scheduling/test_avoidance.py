from dataclasses import replace
from datetime import timedelta

from trainyard_protocol.states import Reason
from trainyard_server.domain.scheduling.avoidance import AVOIDED_FOR, Avoidance, avoidance
from trainyard_server.domain.scheduling.scheduler import plan
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, held, only, placed, queued

AVOIDED = Avoidance("a", NOW, NOW + AVOIDED_FOR)


def retried(key: int = 1, cpus: int = 1) -> JobSnapshot:
    return replace(queued(key, cpus=cpus), avoids=AVOIDED)


def test_new_run_goes_to_another_agent_while_one_could_hold_it() -> None:
    both = [agent("a"), agent("b", 4)]
    assert only(plan([queued(1)], both, NOW)).agent_id == "a"
    assert only(plan([retried()], both, NOW)).agent_id == "b"
    assert only(plan([retried()], both, NOW + AVOIDED_FOR)).agent_id == "a"
    assert only(plan([retried()], both, NOW - timedelta(hours=1))).agent_id == "a", "the clock was set back"
    others = ([agent("a")], [agent("a"), agent("b", alive=False)], [agent("a"), agent("b", no_room="full")])
    for agents in others:
        assert only(plan([retried()], agents, NOW)).agent_id == "a"
    assert only(plan([retried(cpus=4)], [agent("a", 4), agent("b", 2, mode="fit")], NOW)).agent_id == "a"


def test_job_waits_for_another_agent_and_leaves_the_avoided_one_to_others() -> None:
    agents = [agent("a"), agent("b", gangs=(held(0, 1),))]
    result = plan([retried(), queued(2, cpus=2)], agents, NOW)
    assert placed(result) == [2]
    assert only(result).agent_id == "a"
    assert result.waiting[1].kind == "room"
    assert "; agent a, on which its last run failed, is avoided until" in result.waiting[1].reason


def test_agent_without_room_gets_nothing_and_holds_back_nobody() -> None:
    full = agent("a", 8, no_room="/data is full (No space left on device)")
    result = plan([queued(1, cpus=4, age=1), queued(2)], [full, agent("b", 1)], NOW)
    assert placed(result) == [2]
    assert result.waiting[1].kind == "no-disk"
    assert result.waiting[1].reason == ("needs room on a disk: on agent a /data is full (No space left on device)")


def test_only_what_the_machine_is_to_blame_for_is_avoided() -> None:
    blamed = {reason for reason in Reason if avoidance("a", reason, NOW) is not None}
    assert blamed == {Reason.HOST_FAILED, Reason.STAGING_FAILED, Reason.GIVEN_BACK, Reason.HOST_LOST}
    assert avoidance("a", Reason.HOST_FAILED, NOW) == AVOIDED
