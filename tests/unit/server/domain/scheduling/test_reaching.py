"""Gangs over several agents, of which some do not reach each other."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trainyard_server.domain.scheduling.candidates import candidates
from trainyard_server.domain.scheduling.reaching import meeting_sets, pairs_apart
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import NO_QUOTAS, plan
from unit.server.domain.scheduling.queue_support import NOW, agent, held, only, placed, queued

NAMES = "abcdef"


def hosts(names: str = "abc", unreached: Mapping[str, str] | None = None, **given: Any) -> list[AgentSnapshot]:
    """Agents of two CPUs each. `unreached`: those that each one does not reach."""
    return [
        agent(
            name,
            2,
            16,
            **({"address": name, "group": "default", "unreached": frozenset((unreached or {}).get(name, ""))} | given),
        )
        for name in names
    ]


def test_gang_is_placed_on_agents_that_reach_each_other() -> None:
    """Each row: what each agent does not reach, the replicas of one CPU, and the agents that get them; of a gang that
    waits the end of the reason."""
    alone = "give it a group of its own with --group NAME"
    rows: dict[str, tuple[str, dict[str, str], int, str]] = {
        "all reach all": ("abc", {}, 4, "ab"),
        "the first is behind NAT": ("abc", {"b": "a", "c": "a"}, 4, "bc"),
        "one of two that are apart says so": ("abc", {"b": "a"}, 4, "bc"),
        "the other one says so": ("abc", {"a": "b"}, 4, "ac"),
        "one reaches nobody, whoever may reach it": ("abc", {"a": "bc"}, 4, "bc"),
        "agents that are gone count for nothing": ("abc", {"a": "xyz", "b": "x"}, 4, "ab"),
        "what an agent says of itself counts for nothing": ("ab", {"a": "a"}, 4, "ab"),
        "two sites, of which the larger one is large enough": ("abcde", {"a": "cde", "b": "cde"}, 6, "cde"),
        "a ring of neighbours": ("abcdef", {"a": "b", "b": "c", "c": "d", "d": "e", "e": "f", "f": "a"}, 6, "bdf"),
        "a gang that one agent holds": ("abc", {"a": "bc", "b": "ac", "c": "ab"}, 2, "a"),
        "nobody reaches the one that is needed": (
            "abc",
            {"a": "c", "b": "c"},
            6,
            f"6.0 GB on several agents that reach each other; machine c cannot be reached by a and b: {alone}",
        ),
        "it does not reach the others": ("ab", {"b": "a"}, 4, f"machine a cannot be reached by b: {alone}"),
        "one that reaches nobody": ("abc", {"c": "ab"}, 6, f"machine c does not reach a and b: {alone}"),
        "nobody reaches anybody": (
            "abcdef",
            {name: NAMES.replace(name, "") for name in NAMES},
            4,
            "; and 2 more: give each a group of its own with --group NAME",
        ),
    }
    wrong = {}
    for what, (names, unreached, replicas, expected) in rows.items():
        result = plan([queued(1, replicas, gb=1)], hosts(names, unreached), NOW)
        found = "".join(part.agent_id for part in only(result).parts) if result.placements else result.waiting[1].reason
        if not (found == expected if result.placements else found.endswith(expected)):
            wrong[what] = found
    assert not wrong


def test_gang_waits_for_room_on_agents_that_meet_and_keeps_no_other() -> None:
    unreached = {"a": "c", "b": "c"}
    a, b, c = hosts("abc", unreached)
    busy = replace(a, gangs=(held(0, key=7),))
    gang, small = queued(1, 4, gb=1, age=10), queued(2, 2, gb=1)
    result = plan([gang, small], [busy, b, c], NOW)
    assert (placed(result), only(result).agent_id) == ([2], "c"), "which the gang cannot have"
    assert result.waiting[1].reason.endswith(
        "a and b have 3 vCPU and 32.0 GB free, and not enough for each replica; machine c cannot be reached by a and "
        "b: give it a group of its own with --group NAME"
    )
    views = {view.agent: view.lacks for view in candidates(gang, [busy, b, c], NO_QUOTAS)}
    assert views == {
        "a": "has room only for a part of it",
        "b": "has room only for a part of it",
        "c": "cannot be reached by a and b",
    }


graphs = st.integers(1, 20).flatmap(
    lambda count: st.lists(st.lists(st.integers(0, count - 1), max_size=4), min_size=count, max_size=count)
)


@given(graphs)
def test_sets_that_meet_are_without_pairs_apart_and_as_large_as_they_can_be(unreached: list[list[int]]) -> None:
    agents = [
        agent(str(number), address="x", unreached=frozenset(map(str, others)))
        for number, others in enumerate(unreached)
    ]
    apart = pairs_apart(agents)
    ids = [each.agent_id for each in agents]
    found = [{each.agent_id for each in some} for some in meeting_sets(agents)]

    def meets(some: set[str]) -> bool:
        return not any(other in apart.get(one, ()) for one, other in combinations(some, 2))

    assert all(map(meets, found))
    assert set().union(*found) == set(ids)
    assert not [some for some in found for one in ids if one not in some and meets({*some, one})], "one more would meet"
    if len(ids) <= 8:
        every = [set(some) for count in range(1, len(ids) + 1) for some in combinations(ids, count) if meets(set(some))]
        largest = [some for some in every if not any(some < other for other in every)]
        assert sorted(map(sorted, found)) == sorted(map(sorted, largest))
