"""Turns of notifications: which attempts begin next, so that no project and no receiver keeps the others waiting."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

IN_FLIGHT = 64
"""Attempts at the same time, of all projects."""

OF_PROJECT = 8
"""Attempts at the same time of one project."""

AT_RECEIVER = 4
"""Attempts at the same time at one receiver, of all projects."""

_PORTS = {"http": 80, "https": 443}


class Lane(NamedTuple):
    """The way of a project to an address, on which one attempt is made at a time."""

    project: str
    receiver: str
    address: str


class FullLanes(NamedTuple):
    """Projects and receivers with as many attempts as they may have."""

    projects: Collection[str]
    receivers: Collection[str]


def receiver_of(address: str) -> str:
    """The receiver behind an address: HOST:PORT of a URL, the domain of a mail address."""
    parts = urlsplit(address)
    if not parts.hostname:
        return address.rpartition("@")[2].lower()
    return f"{parts.hostname.rstrip('.')}:{parts.port or _PORTS[parts.scheme]}"


def full_lanes(in_flight: Collection[Lane]) -> FullLanes:
    projects = Counter(lane.project for lane in in_flight)
    receivers = Counter(lane.receiver for lane in in_flight)
    return FullLanes(_at_least(projects, OF_PROJECT), _at_least(receivers, AT_RECEIVER))


def next_lanes(waiting: Sequence[Lane], in_flight: Collection[Lane], served: Sequence[str]) -> Sequence[Lane]:
    """The lanes whose attempts begin now: of the project with the fewest attempts first, then of the least recently
    served. `waiting`: in the order of each project; `served`: projects, the most recently served last."""
    turns = {project: turn for turn, project in enumerate(served)}
    free, running = list(waiting), list(in_flight)
    while len(running) < IN_FLIGHT:
        full = full_lanes(running)
        free = [lane for lane in free if lane.project not in full.projects and lane.receiver not in full.receivers]
        if not free:
            break
        counts = Counter(lane.project for lane in running)
        ranks = [(counts[lane.project], turns.get(lane.project, -1)) for lane in free]
        running.append(free.pop(ranks.index(min(ranks))))
    return running[len(in_flight) :]


def _at_least(counts: Mapping[str, int], bound: int) -> frozenset[str]:
    return frozenset(name for name, count in counts.items() if count >= bound)
