"""The lease of an agent whose server does not answer: a majority of the members keeps it.

Why nothing runs twice: docs/design/0035-leases-by-majority.md.
"""

from collections.abc import Mapping
from typing import Literal

from trainyard_agent.host.clock import Clock
from trainyard_agent.lease.lease import Lease
from trainyard_protocol.wire.peers import OUTAGE_S, WITHOUT_ANSWER_S, Peers, majority_of
from trainyard_protocol.wire.sync import SyncResponse

Word = Literal["yes", "no"]
"""Whether an agent has no answer of the server."""

_QUIET_S = 15.0
_REACHED_S = 60.0


class Majority:
    """The words of this agent and of others about the server, and what follows for `lease`."""

    def __init__(self, agent_id: str, lease: Lease, clock: Clock) -> None:
        self.agent_id = agent_id
        self._lease = lease
        self.clock = clock
        self._answered_at = self._sent_at = clock.monotonic()  # a process before this one may have had one just now
        self._asked_at = float("-inf")
        self._voted_at: dict[str, float] = {}
        self._reached_at: dict[str, float] = {}
        self._members: tuple[str, ...] = ()
        self.peers: Peers | None = None
        """The others that it can ask, and that may ask it."""

    def answered(self, sent: float, response: SyncResponse) -> None:
        """Record an answer of the server to a request that was sent then (monotonic)."""
        self._answered_at, self._sent_at = self.clock.monotonic(), sent
        self._members = response.members
        if response.peers is not None or not response.members:  # a server that has just started knows no others yet
            self.peers = response.peers

    @property
    def word(self) -> Word:
        """The answer to another agent."""
        return "yes" if self.clock.monotonic() - self._answered_at >= WITHOUT_ANSWER_S else "no"

    @property
    def reached(self) -> tuple[str, ...]:
        """The agents that have answered within the last minute."""
        since = self.clock.monotonic() - _REACHED_S
        return tuple(sorted(peer for peer, at in self._reached_at.items() if at >= since))

    def questions(self) -> Mapping[str, str]:
        """The addresses of the agents that are to be asked now: all while the server does not answer, and now and then
        in between."""
        now = self.clock.monotonic()
        if self.peers is None or (self.word == "no" and now - self._asked_at < _QUIET_S):
            return {}
        self._asked_at = now
        return self.peers.addresses

    def record_word(self, peer: str, word: Word, asked_at: float) -> None:
        """Record what a peer said that was asked then (monotonic). It said so later, so this counts from then."""
        self._reached_at[peer] = max(asked_at, self._reached_at.get(peer, asked_at))
        if word == "yes":
            self._voted_at[peer] = max(asked_at, self._voted_at.get(peer, asked_at))

    def keep(self) -> None:
        """Renew the lease from when a majority of its members, with this one, had no answer. Raises OSError if it
        cannot be saved; it is renewed all the same."""
        if self.word == "no" or not self._members:
            return
        others = [
            self._voted_at[member] for member in self._members if member != self.agent_id and member in self._voted_at
        ]
        times, needed = [*sorted(others), self.clock.monotonic()], majority_of(len(self._members))
        if len(times) >= needed and times[-needed] - self._sent_at < OUTAGE_S:
            self._lease.keep(times[-needed])
