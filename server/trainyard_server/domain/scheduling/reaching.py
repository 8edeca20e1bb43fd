"""Agents that reach each other, by their own reports: the sets of them that a gang may have parts on. Pure.

Two agents are apart if one says that it does not reach the other. Nothing is asked of those that have said nothing yet:
a gang that does not meet there is given back, and its agents say so.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.spreading import listed

_EXACT = 12
"""Most kinds of agents of which all sets are found: 81 at most. Of more each kind has one set, which may be smaller."""

_MOST_NAMED = 3

Apart = Mapping[str, Set[str]]
"""The agents that each agent is apart from; without those that are apart from none."""


def by_group(agents: Iterable[AgentSnapshot]) -> Sequence[Sequence[AgentSnapshot]]:
    """The agents of each group that may have parts of a gang over several."""
    groups: dict[str, list[AgentSnapshot]] = {}
    for agent in agents:
        if agent.address and not agent.engine:
            groups.setdefault(agent.group, []).append(agent)
    return [groups[name] for name in sorted(groups)]


def pairs_apart(agents: Iterable[AgentSnapshot]) -> Apart:
    """The pairs of these agents that are apart."""
    agents = list(agents)
    if not any(agent.unreached for agent in agents):
        return {}
    ids = frozenset(agent.agent_id for agent in agents)
    apart: dict[str, set[str]] = {}
    for agent in agents:
        for other in (agent.unreached & ids) - {agent.agent_id}:
            apart.setdefault(agent.agent_id, set()).add(other)
            apart.setdefault(other, set()).add(agent.agent_id)
    return apart


def meeting_sets(agents: Sequence[AgentSnapshot]) -> Sequence[Sequence[AgentSnapshot]]:
    """The largest sets of these agents in which no two are apart: all of them, if none are. Those come first that leave
    the fewest out, and those of which others say that they do not reach them."""
    apart = pairs_apart(agents)
    if not apart:
        return [agents]
    kinds = _kinds(apart)
    outside = [
        {agent_id for number in range(len(kinds)) if number not in some for agent_id in kinds[number]}
        for some in _sets_of(kinds, apart)
    ]
    missed = _missed(agents)

    def order(out: Set[str]) -> tuple[int, int, Sequence[str]]:
        return len(out), -sum(missed[agent_id] for agent_id in out), sorted(out)

    return [[agent for agent in agents if agent.agent_id not in out] for out in sorted(outside, key=order)]


def apart_by_agent(agents: Iterable[AgentSnapshot]) -> Mapping[str, str]:
    """A clause about each agent that others do not reach, or that does not reach them, by its id: the fewest agents by
    which all pairs that are apart are explained, as far as is seen."""
    agents = list(agents)
    apart = {agent_id: set(others) for agent_id, others in pairs_apart(agents).items()}
    by_id = {agent.agent_id: agent for agent in agents}
    missed = _missed(agents)
    clauses = {}
    while any(apart.values()):
        worst = max(apart, key=lambda each: (len(apart[each]), missed[each], by_id[each].name))
        others = apart.pop(worst)
        missing = [other for other in others if worst in by_id[other].unreached]
        names = listed(sorted(by_id[other].name for other in missing or others))
        clauses[worst] = f"cannot be reached by {names}" if missing else f"does not reach {names}"
        for other in others:
            apart[other].discard(worst)
    return clauses


def about_apart(agents: Iterable[AgentSnapshot]) -> str:
    """A clause about the agents of a group that do not reach each other, and what is to be done; "" without any."""
    agents = list(agents)
    names = {agent.agent_id: agent.name for agent in agents}
    clauses = [f"machine {names[agent_id]} {clause}" for agent_id, clause in apart_by_agent(agents).items()]
    if not clauses:
        return ""
    more = len(clauses) - _MOST_NAMED
    shown = "; ".join([*clauses[:_MOST_NAMED], *([f"and {more} more"] if more > 0 else [])])
    return f"{shown}: give {'it' if len(clauses) == 1 else 'each'} a group of its own with --group NAME"


def _missed(agents: Iterable[AgentSnapshot]) -> Counter[str]:
    """The number of agents that do not reach each one."""
    return Counter(other for agent in agents for other in agent.unreached)


def _kinds(apart: Apart) -> Sequence[Sequence[str]]:
    """The agents that are apart from the same ones, together: they meet each other."""
    kinds: dict[frozenset[str], list[str]] = {}
    for agent_id in sorted(apart):
        kinds.setdefault(frozenset(apart[agent_id]), []).append(agent_id)
    return list(kinds.values())


def _sets_of(kinds: Sequence[Sequence[str]], apart: Apart) -> Sequence[Set[int]]:
    """Sets of kinds, by their numbers, that meet and to which no further kind can be added."""
    numbers = range(len(kinds))
    meets = [
        {other for other in numbers if kinds[other][0] not in apart[some[0]]} - {n} for n, some in enumerate(kinds)
    ]
    if len(kinds) <= _EXACT:
        return list(_maximal(frozenset(), set(numbers), set(), meets))
    largest_first = sorted(numbers, key=lambda number: -len(kinds[number]))
    return list({frozenset(_grown(number, largest_first, meets)) for number in numbers})


def _maximal(chosen: frozenset[int], left: Set[int], done: Set[int], meets: Sequence[Set[int]]) -> Iterator[Set[int]]:
    """The algorithm of Bron and Kerbosch, with a pivot."""
    if not left and not done:
        yield chosen
        return
    pivot = max(left | done, key=lambda number: len(left & meets[number]))
    for number in sorted(left - meets[pivot]):
        yield from _maximal(chosen | {number}, left & meets[number], done & meets[number], meets)
        left, done = left - {number}, done | {number}


def _grown(first: int, order: Iterable[int], meets: Sequence[Set[int]]) -> Set[int]:
    """A set with the first kind, to which each further one that meets all is added."""
    grown, left = {first}, meets[first]
    for number in order:
        if number in left:
            grown.add(number)
            left = left & meets[number]
    return grown
