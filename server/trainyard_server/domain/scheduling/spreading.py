"""Gangs over several agents: which job may have parts on several, and which replicas each agent gets. Pure.

A gang that one agent could hold never has parts. Else it goes to the fewest agents of one group that hold it: replicas
that follow each other stay together, so that the ranks of a machine are neighbours.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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

    def problem(self, training_input: TrainingInput) -> str:
        """The reason why a job has no parts on several agents, as a clause; "" if it may have some."""
        directory = training_input.job_dir or self.default
        is_below = any(f"{directory}/".startswith(f"{root.rstrip('/')}/") for root in self.roots)
        if not directory or directory.startswith(SCHEME) or is_below:
            return ""
        return f"its job-dir is below {directory}, which its machines do not share (--shared-job-dirs)"


NOTHING_SHARED = SharedDirs()


@dataclass(frozen=True, slots=True)
class Room(Generic[_Agent]):
    """The resources of an agent that a gang may have."""

    agent: _Agent
    vcpus: int
    memory_bytes: int
    gpus: Mapping[str, int]

    def holds(self, shares: Iterable[ResourceShare]) -> int:
        """The number of the first shares that have room together."""
        vcpus, memory, gpus, count = self.vcpus, self.memory_bytes, Counter(self.gpus), 0
        for share in shares:
            vcpus, memory = vcpus - share.vcpus, memory - share.memory_bytes
            gpus[share.gpu_type or ""] -= share.gpus
            if vcpus < 0 or memory < 0 or (share.gpus and gpus[share.gpu_type or ""] < 0):
                break
            count += 1
        return count

    @property
    def size(self) -> tuple[int, int, int]:
        return sum(self.gpus.values()), self.vcpus, self.memory_bytes


Spread = Sequence[tuple[_Agent, tuple[ResourceShare, ...]]]
"""The shares of each agent, that with the primary first."""


def spread(shares: Sequence[ResourceShare], rooms: Iterable[Room[_Agent]]) -> Spread[_Agent]:
    """The agents of a gang with their shares; none if these have no room for it together."""
    rooms = sorted(rooms, key=lambda room: room.size)
    if _total(rooms).holds(shares) < len(shares):
        return ()
    return _in_order(shares, rooms) or _largest_first(shares, rooms)


def _in_order(shares: Sequence[ResourceShare], rooms: Iterable[Room[_Agent]]) -> Spread[_Agent]:
    """Fill one agent after the other: each time the one that takes most of the next replicas, of equal ones the
    smallest."""
    left, at, parts = list(rooms), 0, list[tuple[_Agent, tuple[ResourceShare, ...]]]()
    while at < len(shares):
        rest = shares[at:]
        counts: dict[object, int] = {}
        for room in left:
            kind = (room.vcpus, room.memory_bytes, *sorted(room.gpus.items()))
            if kind not in counts:
                counts[kind] = room.holds(rest)
        numbers = [counts[room.vcpus, room.memory_bytes, *sorted(room.gpus.items())] for room in left]
        most = max(numbers, default=0)
        if not most:
            return ()
        chosen = left.pop(numbers.index(most))
        parts.append((chosen.agent, tuple(rest[:most])))
        at += most
    return parts


def _largest_first(shares: Sequence[ResourceShare], rooms: Sequence[Room[_Agent]]) -> Spread[_Agent]:
    """First fit, the largest replicas and the largest agents first: where the order leaves too much room unused."""
    left = [_Left(room.vcpus, room.memory_bytes, Counter(room.gpus)) for room in reversed(rooms)]
    taken: list[list[int]] = [[] for _ in rooms]
    order = range(len(shares))
    for number in sorted(order, key=lambda number: _size_of(shares[number]), reverse=True):
        share = shares[number]
        kind = share.gpu_type or ""
        for room, numbers in zip(left, taken, strict=True):
            if share.vcpus <= room.vcpus and share.memory_bytes <= room.memory_bytes and share.gpus <= room.gpus[kind]:
                room.vcpus -= share.vcpus
                room.memory_bytes -= share.memory_bytes
                room.gpus[kind] -= share.gpus
                numbers.append(number)
                break
        else:
            return ()
    parts = [(room.agent, sorted(numbers)) for room, numbers in zip(reversed(rooms), taken, strict=True) if numbers]
    primary = next((number for number in order if shares[number].task == PRIMARY.name), 0)
    parts.sort(key=lambda part: (primary not in part[1], part[1][0]))
    return [(agent, tuple(shares[number] for number in numbers)) for agent, numbers in parts]


@dataclass(slots=True)
class _Left:
    """The rest of a room."""

    vcpus: int
    memory_bytes: int
    gpus: Counter[str]


def _size_of(share: ResourceShare) -> tuple[int, int, int]:
    return share.gpus, share.vcpus, share.memory_bytes


def _total(rooms: Iterable[Room[_Agent]]) -> "Room[None]":
    vcpus, memory, gpus = 0, 0, Counter[str]()
    for room in rooms:
        vcpus, memory = vcpus + room.vcpus, memory + room.memory_bytes
        gpus.update(room.gpus)
    return Room(None, vcpus, memory, gpus)


def listed(names: Sequence[str]) -> str:
    """`a, b and c`"""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)
