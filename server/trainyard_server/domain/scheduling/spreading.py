"""Gangs over several agents: which job may have parts on several, and which replicas each agent gets. Pure.

A gang that one agent could hold never has parts. Else it goes to the fewest agents of one group that hold it: replicas
that follow each other stay together, so that the ranks of a machine are neighbours.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from trainyard_protocol.job.cluster import PRIMARY
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.net.gcs import SCHEME
from trainyard_server.domain.scheduling.resources import ResourceShare

_Agent = TypeVar("_Agent")


@dataclass(frozen=True, slots=True)
class SharedDirs:
    """The directories that every machine sees: `roots`, and gs://. `default`: that of jobs without jobDir, or ""."""

    roots: tuple[str, ...] = ()
    default: str = ""

    def lets_spread(self, training_input: TrainingInput) -> bool:
        """Whether a job may have parts on several agents."""
        directory = training_input.job_dir or self.default
        is_below = any(f"{directory}/".startswith(f"{root.rstrip('/')}/") for root in self.roots)
        return not directory or directory.startswith(SCHEME) or is_below

    def problem(self, training_input: TrainingInput) -> str:
        """The reason why a job has no parts on several agents, as a clause; "" if it may have some."""
        if self.lets_spread(training_input):
            return ""
        directory = training_input.job_dir or self.default
        return f"its job-dir is below {directory}, which its machines do not share (--shared-job-dirs)"


NOTHING_SHARED = SharedDirs()


@dataclass(frozen=True, slots=True)
class Room:
    """The resources that a gang may have on an agent."""

    vcpus: int
    memory_bytes: int
    gpus: tuple[tuple[str, int], ...] = ()

    def holds(self, shares: Iterable[ResourceShare]) -> int:
        """The number of the first shares that have room together."""
        vcpus, memory, gpus, count = self.vcpus, self.memory_bytes, dict(self.gpus), 0
        for share in shares:
            vcpus, memory = vcpus - share.vcpus, memory - share.memory_bytes
            if share.gpus:
                kind = share.gpu_type or ""
                gpus[kind] = gpus.get(kind, 0) - share.gpus
                if gpus[kind] < 0:
                    break
            if vcpus < 0 or memory < 0:
                break
            count += 1
        return count

    @property
    def size(self) -> tuple[int, int, int]:
        return sum(count for _, count in self.gpus), self.vcpus, self.memory_bytes


class Rooms(Generic[_Agent]):
    """The rooms of some agents, the smallest first, equal ones together."""

    def __init__(self, rooms: Iterable[tuple[_Agent, Room]]) -> None:
        agents: dict[Room, list[_Agent]] = {}
        vcpus, memory, gpus = 0, 0, Counter[str]()
        for agent, room in rooms:
            agents.setdefault(room, []).append(agent)
            vcpus, memory = vcpus + room.vcpus, memory + room.memory_bytes
            for kind, count in room.gpus:
                gpus[kind] += count
        self.agents = sorted(agents.items(), key=lambda equal: equal[0].size)
        self.total = Room(vcpus, memory, tuple(sorted(gpus.items())))


Spread = Sequence[tuple[_Agent, tuple[ResourceShare, ...]]]
"""The shares of each agent, that with the primary first."""


def spread(shares: Sequence[ResourceShare], rooms: Rooms[_Agent]) -> Spread[_Agent]:
    """The agents of a gang with their shares; none if these have no room for it together."""
    if rooms.total.holds(shares) < len(shares):
        return ()
    return _in_order(shares, rooms) or _largest_first(shares, rooms)


def _in_order(shares: Sequence[ResourceShare], rooms: Rooms[_Agent]) -> Spread[_Agent]:
    """Fill one agent after the other: each time the one that takes most of the next replicas, of equal ones the
    smallest."""
    left = [(room, list(agents)) for room, agents in rooms.agents]
    at, parts = 0, list[tuple[_Agent, tuple[ResourceShare, ...]]]()
    while at < len(shares):
        rest = shares[at:]
        counts = [room.holds(rest) if agents else 0 for room, agents in left]
        most = max(counts, default=0)
        if not most:
            return ()
        _, agents = left[counts.index(most)]
        parts.append((agents.pop(0), tuple(rest[:most])))
        at += most
    return parts


def _largest_first(shares: Sequence[ResourceShare], rooms: Rooms[_Agent]) -> Spread[_Agent]:
    """First fit, the largest replicas and the largest agents first: where the order leaves too much room unused."""
    left = [_Left(agent, room) for room, agents in reversed(rooms.agents) for agent in agents]
    order = range(len(shares))
    sizes = [(share.gpus, share.vcpus, share.memory_bytes) for share in shares]
    for number in sorted(order, key=sizes.__getitem__, reverse=True):
        if not any(room.claim(number, shares[number]) for room in left):
            return ()
    parts = [(room.agent, sorted(room.taken)) for room in left if room.taken]
    primary = next((number for number in order if shares[number].task == PRIMARY.name), 0)
    parts.sort(key=lambda part: (primary not in part[1], part[1][0]))
    return [(agent, tuple(shares[number] for number in numbers)) for agent, numbers in parts]


class _Left(Generic[_Agent]):
    """The rest of a room, and the numbers of the replicas that have taken what is missing."""

    def __init__(self, agent: _Agent, room: Room) -> None:
        self.agent = agent
        self.taken: list[int] = []
        self._vcpus, self._memory, self._gpus = room.vcpus, room.memory_bytes, Counter(dict(room.gpus))

    def claim(self, number: int, share: ResourceShare) -> bool:
        """Give the replica its share, if that is there."""
        kind = share.gpu_type or ""
        if share.vcpus > self._vcpus or share.memory_bytes > self._memory or share.gpus > self._gpus[kind]:
            return False
        self._vcpus, self._memory = self._vcpus - share.vcpus, self._memory - share.memory_bytes
        self._gpus[kind] -= share.gpus
        self.taken.append(number)
        return True


_MOST_NAMED = 5


def listed(names: Sequence[str]) -> str:
    """`a, b and c`; of many the first ones: `a, b, c, d, e and 95 more`"""
    if len(names) > _MOST_NAMED + 1:
        names = [*names[:_MOST_NAMED], f"{len(names) - _MOST_NAMED} more"]
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
