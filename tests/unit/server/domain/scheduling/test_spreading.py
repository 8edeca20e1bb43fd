"""Gangs over several agents: where their parts are, what they wait for, and that they delay nobody."""

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainyard_protocol.job.keys.scheduling import Scheduling
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot, ResourceShare
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS, Placement, plan
from trainyard_server.domain.scheduling.spreading import Room, Rooms, spread
from trainyard_server.domain.snapshots import JobSnapshot
from unit.server.domain.scheduling.queue_support import NOW, agent, held, only, queued, request


def host(name: str, cpus: int = 4, gb: float = 16, **given: Any) -> AgentSnapshot:
    return agent(name, cpus, gb, **({"address": f"10.0.0.{ord(name[-1])}", "group": "default"} | given))


def tasks(placement: Placement) -> dict[str, list[str]]:
    short = {"master-replica-0": "m"}
    return {
        part.agent_id: [short.get(given.task, given.task.replace("worker-replica-", "w")) for given in part.assignments]
        for part in placement.parts
    }


A, B, C = host("a"), host("b"), host("c")


def test_gang_that_no_agent_holds_gets_the_fewest_with_neighbours_together() -> None:
    placement = only(plan([queued(1, 4, cpus=2)], [A, B, C], NOW))
    assert tasks(placement) == {"a": ["m", "w0"], "b": ["w1", "w2"]}
    assert placement.spread == (
        "Its replicas run on a (master-replica-0 to worker-replica-0, 2 in all) and b (worker-replica-1 to "
        "worker-replica-2, 2 in all)."
    )
    large = host("d", 6)
    assert tasks(only(plan([queued(1, 4, cpus=2)], [A, large, B], NOW))) == {"d": ["m", "w0", "w1"], "a": ["w2"]}
    assert tasks(only(plan([queued(1, 3, cpus=2)], [A, large, B], NOW))) == {"d": ["m", "w0", "w1"]}


def test_parts_are_on_agents_of_one_group_that_say_an_address() -> None:
    gang = queued(1, 4, cpus=2)
    for other, why in (
        (host("b", address=""), "b has no address for others (--address)"),
        (host("b", group="other"), "they are not of one group (--group)"),
        (host("b", engine=True), "b only has whole gangs"),
    ):
        waits = plan([gang], [A, other], NOW).waiting[1]
        assert (waits.kind, waits.reason.rpartition("; ")[2]) == (
            "never",
            f"a and b together have room for it, but {why}",
        )
    assert tasks(only(plan([gang], [A, host("b", group="other"), C], NOW))) == {"a": ["m", "w0"], "c": ["w1", "w2"]}


def test_gang_that_waits_for_several_agents_is_delayed_by_nobody_behind_it() -> None:
    busy = replace(A, gangs=(held(0, 1, key=7),))
    gang, small = queued(1, 4, cpus=2, age=10), queued(2, cpus=2)
    result = plan([gang, small], [busy, B], NOW)
    assert not result.placements
    assert result.waiting[1].reason == (
        "needs 8 vCPU and 8.0 GB on several agents; a and b have 6 vCPU and 32.0 GB free, and not enough for each "
        "replica"
    )
    behind = queued(3, 4, cpus=2)
    assert (
        plan([gang, behind], [busy, B, C, host("d")], NOW)
        .waiting[3]
        .reason.startswith("needs 8 vCPU and 8.0 GB on several agents; a, b, c and d have 6 vCPU")
    )
    assert [view.lacks for view in candidates(gang, [replace(B, gangs=(held(0, 1, 2),)), A], NO_QUOTAS)] == [
        "has room only for a part of it",
        "has room only for a part of it, and for no replica now",
    ]
    other_group = host("c", group="other")
    assert only(plan([gang, small], [busy, B, other_group], NOW)).agent_id == "c"


shapes = st.builds(lambda vcpus, gb, gpus: (vcpus, gb, gpus), st.integers(1, 4), st.integers(1, 8), st.integers(0, 2))


@given(st.lists(shapes, min_size=1, max_size=8), st.lists(shapes, max_size=5))
def test_spread_gives_each_replica_once_and_no_agent_more_than_it_has(
    wanted: list[tuple[int, int, int]], there: list[tuple[int, int, int]]
) -> None:
    shares = [
        ResourceShare(request(number).task.name, "t", cpus, gb * GIGABYTE, "T4" if gpus else "", gpus)
        for number, (cpus, gb, gpus) in enumerate(wanted)
    ]
    rooms = [Room(2 * c, 2 * gb * GIGABYTE, (("T4", 2 * gpus),)) for c, gb, gpus in there]
    parts = spread(shares, Rooms(enumerate(rooms)))
    given = Counter(share.task for _, part in parts for share in part)
    assert given == (Counter(share.task for share in shares) if parts else Counter())
    assert len({agent_ for agent_, _ in parts}) == len(parts)
    assert all(rooms[number].holds(part) == len(part) > 0 for number, part in parts)
    if any(room.holds(shares) == len(shares) for room in rooms):
        assert len(parts) == 1, "one agent that holds all is enough"


def elastic(workers: int, least: int, *, retried: bool = True, key: int = 1) -> JobSnapshot:
    """A job with a master and workers of a vCPU each, of which so many are enough for a retry."""
    job = queued(key, 1 + workers, backoff_until=NOW - timedelta(minutes=1) if retried else None)
    return replace(job, training_input=TrainingInput(scheduling=Scheduling(min_workers=least)))


def test_workers_are_left_out_before_a_gang_is_scaled_down() -> None:
    """Each row: the job with its vCPU each, the vCPU of the machines, the quota, and the parts that it gets: their
    replicas, and `/` of the vCPU of the first if that is scaled down. "": it waits."""
    one, two, three = (["a"], [1]), (["a", "b"], [1, 1]), (["a", "b", "c"], [1, 1, 2])
    retry, first = elastic(2, 1), elastic(2, 1, retried=False)
    rows = {
        "retry, of three machines one is lost": (retry, two, NO_QUOTAS, "1 1"),
        "first run": (first, two, NO_QUOTAS, "1 1"),
        "enough machines": (first, three, NO_QUOTAS, "2 1"),
        "one machine that holds the least": (elastic(5, 1), (["a"], [3]), NO_QUOTAS, "3"),
        "one machine that does not": (retry, one, NO_QUOTAS, "3/1"),
        "all workers are needed": (elastic(2, 2), two, NO_QUOTAS, "3/1"),
        "not elastic": (elastic(2, 0), two, NO_QUOTAS, "3/1"),
        "a quota below the least": (retry, two, Quotas({"vcpus": 1}), "3/1"),
        "a quota of the least": (retry, two, Quotas({"vcpus": 2}), "1 1"),
    }
    wrong = {}
    for what, (job, (names, cpus), limits, expected) in rows.items():
        result = plan([job], machines(names, cpus), NOW, limits)
        parts = only(result).parts if result.placements else ()
        found = " ".join(str(len(part.assignments)) for part in parts)
        if len(parts) == 1 and "Scaled down" in only(result).scaled:
            found += f"/{parts[0].assignments[0].vcpus}"
        if found != expected:
            wrong[what] = found
    assert not wrong
    assert only(plan([first], machines(*two), NOW)).scaled == (
        "Starting with 1 of 2 workers, because there is no room for all."
    )


def machines(names: list[str], cpus: list[int]) -> list[AgentSnapshot]:
    """Agents of one group with so many CPUs, which scale gangs down."""
    return [
        agent(name, count, gb=32, mode="fit", address=name, group="default")
        for name, count in zip(names, cpus, strict=True)
    ]
