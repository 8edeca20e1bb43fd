"""The agents that have the answers of this process, by its monotonic clock, and whether they are a majority.

An agent that keeps getting answers says to no other one that it has none (`wire/peers.py`). Which answers it has is
known by its next requests, which name the last one. After a start nothing is known for a while.
"""

import secrets
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock

from trainyard_protocol.wire.peers import MOST_MEMBERS, OUTAGE_S, SHORT_LEASE_S, WITHOUT_ANSWER_S, majority_of
from trainyard_server.storage.agent_liveness import Stopwatch

_RATE = 1e-3
"""No clock of a member is faster or slower than this one by more."""
_PAUSE_S = WITHOUT_ANSWER_S * (1 - _RATE)
_CONFIRMED_S = SHORT_LEASE_S * (1 + _RATE)
_STAMPS = 4  # answers that may be under way: a call that was given up may be answered beside the next


@dataclass(slots=True)
class _Caller:
    """An agent. `stamps` are those of the last answers to it, with their times. `sent_at`: of the newest answer that it
    is known to have; since `since` it has had them without a pause. Its process has run since `began_at`, or longer."""

    called_at: float
    address: str
    began_at: float
    group: str = ""
    stamps: deque[tuple[str, float]] = field(default_factory=lambda: deque(maxlen=_STAMPS))
    sent_at: float = float("-inf")
    since: float = float("inf")


@dataclass(frozen=True, slots=True)
class Offer:
    """The addresses of the other agents that an agent may ask, and the members of its short lease; empty: it gets the
    long one."""

    addresses: dict[str, str]
    members: tuple[str, ...]


class Membership:
    """It is for several threads."""

    def __init__(self, stopwatch: Stopwatch) -> None:
        self._stopwatch = stopwatch
        self._began_at = self._called_at = stopwatch()
        self._callers: dict[str, _Caller] = {}
        self._lock = Lock()
        self.decides = True
        """Whether this is the server process that takes agents for lost, and so the one that may give short leases."""

    def called(self, agent_id: str, address: str, echo: str, group: str = "") -> bool:
        """Record a request of an agent of the group, which other agents can ask at this address. Returns whether `echo`
        is the stamp of the newest answer to it."""
        now = self._stopwatch()
        with self._lock:
            if now - self._called_at > _PAUSE_S:  # this process had no network, or stood still: as after a start
                self._began_at = now
            self._called_at = now
            caller = self._callers.setdefault(agent_id, _Caller(now, address, now))
            caller.called_at, caller.address, caller.group = now, address, group
            if not echo:
                caller.began_at = now
            sent_at = dict(caller.stamps).get(echo)
            if sent_at is None:
                return False
            if now - caller.sent_at > _PAUSE_S:
                caller.since = now
            caller.sent_at = max(sent_at, caller.sent_at)
            return echo == caller.stamps[-1][0]

    def stamp(self, agent_id: str) -> str:
        """The name of an answer that is sent to the agent now."""
        stamp = secrets.token_hex(8)
        with self._lock:
            caller = self._callers.setdefault(agent_id, _Caller(self._stopwatch(), "", self._stopwatch()))
            caller.stamps.append((stamp, self._stopwatch()))
        return stamp

    def forget(self, agent_id: str) -> tuple[str, ...]:
        """Forget an agent that was removed. Returns the others, whose next lists are without it."""
        with self._lock:
            self._callers.pop(agent_id, None)
            return tuple(self._callers)

    def offer(self, agent_id: str, reaches: Collection[str], has: Sequence[str]) -> Offer:
        """The offer to an agent that reaches these others, and has a lease with the members `has`.

        The members are the agent and those that it reaches and that have the answers of this process. So one that joins
        is a member once it counts, and one that leaves is none as soon as it does not: the others keep short leases.
        """
        now = self._stopwatch()
        addresses = {other: caller.address for other, caller in sorted(self._callable(agent_id).items())}
        with self._lock:
            confirmed = set(filter(self._is_confirmed, addresses))
            caller = self._callers.get(agent_id)
        if not self.decides or len(addresses) >= MOST_MEMBERS:
            return Offer({}, ())
        if now - self._began_at < _CONFIRMED_S + WITHOUT_ANSWER_S:  # nobody can have been confirmed for long enough
            return Offer(addresses, tuple(has))
        reached = set(reaches)
        if caller is not None and now - caller.began_at < WITHOUT_ANSWER_S:  # it has not asked them all yet
            reached.update(has)
        others = confirmed & reached
        return Offer(addresses, tuple(sorted({*others, agent_id})) if others else ())

    def may_vote(self, agent_id: str) -> bool:
        """Whether the agent may ask others for its lease."""
        return self.decides and 0 < len(self._callable(agent_id)) < MOST_MEMBERS

    def neighbours(self, agent_id: str) -> dict[str, str]:
        """The addresses of other agents of its group that an agent asks only whether it reaches them: of many the next
        ones by their ids, so that each is asked by as many."""
        with self._lock:
            caller = self._callers.get(agent_id)
        if not self.decides or caller is None or not caller.address:
            return {}
        others = {other: peer.address for other, peer in self._callable(agent_id).items() if peer.group == caller.group}
        ring = sorted(others, key=lambda other: (other < agent_id, other))
        return {other: others[other] for other in sorted(ring[: MOST_MEMBERS - 1])}

    def _callable(self, agent_id: str) -> dict[str, _Caller]:
        """The agents beside this one that have called lately, and can be asked."""
        now = self._stopwatch()
        with self._lock:
            return {
                other: caller
                for other, caller in self._callers.items()
                if other != agent_id and caller.address and now - caller.called_at < SHORT_LEASE_S
            }

    def has_majority(self, members: Collection[str], agent_id: str) -> bool:
        """Whether this server and those of the members, without this agent, that have its answers are a majority, and
        have been for as long as the agent may go on by what others have said."""
        with self._lock:
            confirmed = sum(self._is_confirmed(member) for member in members if member != agent_id)
        return confirmed + 1 >= majority_of(len(members))

    def lease_ends_s(self, agent_id: str, lease_s: float, lists: Collection[Collection[str]]) -> float:
        """After how many seconds of silence the lease of an agent has ended, which may have any of these lists of
        members."""
        if all(self.has_majority(members, agent_id) for members in lists):
            return lease_s
        return max(lease_s, OUTAGE_S * (1 + 2 * _RATE) + SHORT_LEASE_S)

    def _is_confirmed(self, agent_id: str) -> bool:
        now, caller = self._stopwatch(), self._callers.get(agent_id)
        return caller is not None and now - caller.sent_at <= _PAUSE_S and now - caller.since >= _CONFIRMED_S
