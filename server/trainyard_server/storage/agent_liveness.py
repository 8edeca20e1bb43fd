"""Agent liveness: how long each agent has been silent, by this process's monotonic clock.

Each request of an agent increments `AgentRow.heartbeats`. An agent is silent for as long as this process reads the
same number. The time of day does not matter, so a clock that is set loses no run, and several server processes agree:
all of them read the same row. A process counts from its first read: it may wait too long, never too short.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

Stopwatch = Callable[[], float]
"""A monotonic clock, in seconds."""

_NEWEST = 4


class AgentContact(Protocol):
    """The columns of an agent's row that tell whether it is alive."""

    @property
    def agent_id(self) -> str: ...
    @property
    def heartbeats(self) -> int: ...
    @property
    def last_seen(self) -> datetime: ...


@dataclass(frozen=True, slots=True)
class _LastHeartbeat:
    """The row has had `heartbeats` since `at`. `stale`: at the first read its `last_seen` was too old."""

    heartbeats: int
    at: float
    stale: bool


class AgentLiveness:
    def __init__(self, clock: Callable[[], datetime], stopwatch: Stopwatch, silent_after_s: float) -> None:
        self._clock = clock
        self.stopwatch = stopwatch
        self._silent_after_s = silent_after_s
        self._seen: dict[str, _LastHeartbeat] = {}
        self.newest: tuple[str, ...] = ()
        """Agents of which heartbeats were read last."""

    def silent_s(self, agent: AgentContact) -> float:
        """Seconds since the last heartbeat. Call it often: a heartbeat counts from when it is read."""
        return self.stopwatch() - self._record_heartbeat(agent).at

    def is_alive(self, agent: AgentContact) -> bool:
        """Whether the last heartbeat is recent, so that the agent can be given work.

        At the first read the row's `last_seen` decides. A wrong time of day there only delays or misplaces work.
        """
        last = self._record_heartbeat(agent)
        return not last.stale and self.stopwatch() - last.at <= self._silent_after_s

    def count_contact(self, agent: AgentContact) -> None:
        """Count a heartbeat that is not in the row."""
        last = self._record_heartbeat(agent)
        self._seen[agent.agent_id] = replace(last, at=self.stopwatch(), stale=False)

    def _record_heartbeat(self, agent: AgentContact) -> _LastHeartbeat:
        last = self._seen.get(agent.agent_id)
        if last is None or last.heartbeats != agent.heartbeats:
            age_s = (self._clock() - agent.last_seen).total_seconds()
            stale = last is None and age_s > self._silent_after_s
            last = self._seen[agent.agent_id] = _LastHeartbeat(agent.heartbeats, self.stopwatch(), stale)
            others = (agent_id for agent_id in self.newest if agent_id != agent.agent_id)
            self.newest = (agent.agent_id, *others)[:_NEWEST]
        return last
