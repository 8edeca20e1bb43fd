"""The agents that this one does not reach: by the questions that they leave without an answer, and by gangs that did
not meet.

One answer more or less is an accident, so an agent without an answer is asked again soon. A gang may fail to meet where
questions are answered (another port is closed, say): then its agents count as unreached for a time, which grows with
each failure.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from trainyard_agent.host.clock import Clock

_UNANSWERED = 2
_AGAIN_S = 3.0
_FIRST_APART_S, _MAX_APART_S = 60.0, 1800.0
"""Longer than most preparations of a run: the next one must not meet the same machines again meanwhile."""


@dataclass(slots=True)
class _Peer:
    """Questions in a row without an answer, and when the last one was asked. Gangs did not meet it until `apart_until`,
    after a pause of `apart_s`."""

    unanswered: int = 0
    asked_at: float = float("-inf")
    apart_until: float = float("-inf")
    apart_s: float = 0.0


class UnreachedPeers:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._peers: dict[str, _Peer] = {}

    @property
    def ids(self) -> tuple[str, ...]:
        """The agents that are not reached now."""
        now = self._clock.monotonic()
        found = (
            peer_id
            for peer_id, peer in list(self._peers.items())  # read by other threads too
            if peer.unanswered >= _UNANSWERED or now < peer.apart_until
        )
        return tuple(sorted(found))

    def record(self, peer_id: str, *, answered: bool) -> None:
        """Record whether a question was answered."""
        peer = self._peers.setdefault(peer_id, _Peer())
        peer.unanswered = 0 if answered else peer.unanswered + 1
        peer.asked_at = self._clock.monotonic()

    def record_apart(self, peer_ids: Collection[str]) -> None:
        """Record that the part of a gang did not reach those on these agents."""
        now = self._clock.monotonic()
        for peer_id in peer_ids:
            peer = self._peers.setdefault(peer_id, _Peer())
            lately = now - peer.apart_until < _MAX_APART_S
            peer.apart_s = min(2 * peer.apart_s, _MAX_APART_S) if lately else _FIRST_APART_S
            peer.apart_until = now + peer.apart_s

    def keep_to(self, peer_ids: Collection[str]) -> None:
        """Forget the questions to all but these agents: the others are gone, or others' to ask."""
        for peer_id, peer in list(self._peers.items()):
            if peer_id not in peer_ids:
                peer.unanswered = 0
                if self._clock.monotonic() - peer.apart_until >= _MAX_APART_S:
                    del self._peers[peer_id]

    def to_ask_again(self, addresses: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Those of these agents that have left one question without an answer, with their addresses."""
        before = self._clock.monotonic() - _AGAIN_S
        for peer_id, address in addresses.items():
            peer = self._peers.get(peer_id)
            if peer is not None and 0 < peer.unanswered < _UNANSWERED and peer.asked_at <= before:
                yield peer_id, address
