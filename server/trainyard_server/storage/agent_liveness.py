"""How long agents have been silent, by this process's own monotonic clock.

An agent that is heard of changes its row's `heard`; it is silent for as long as this process has seen the same
number there. So the time of day, which may be set at any moment, has no say in whether a run is lost, and several
server processes agree: whichever of them an agent speaks to, all see the number change. A process that has just
started has heard nobody yet and counts from its first look: it may wait too long, never too short.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from trainyard_server.storage.db.models import AgentRow

Stopwatch = Callable[[], float]
"""Answers with seconds since some moment; never goes back, and knows nothing of the time of day."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """`heard` stood in the row since `at`; `stale`: at our first look that was long ago already."""

    heard: int
    at: float
    stale: bool


class Hearing:
    def __init__(self, clock: Callable[[], datetime], stopwatch: Stopwatch, silent_after_s: float) -> None:
        self._clock = clock
        self._stopwatch = stopwatch
        self._silent_after_s = silent_after_s
        self._seen: dict[str, _Seen] = {}

    def silent_s(self, agent: AgentRow) -> float:
        """For how long it has said nothing at all, in seconds. To be asked often: a change counts when it is seen."""
        return self._stopwatch() - self._look(agent).at

    def is_alive(self, agent: AgentRow) -> bool:
        """Whether the agent has been heard of lately, so that it can be given something.

        At the first look its row's time of day must do: wrong, it only delays or misplaces what it is given.
        """
        seen = self._look(agent)
        return not seen.stale and self._stopwatch() - seen.at <= self._silent_after_s

    def _look(self, agent: AgentRow) -> _Seen:
        seen = self._seen.get(agent.agent_id)
        if seen is None or seen.heard != agent.heard:
            age_s = (self._clock() - agent.last_seen).total_seconds()
            stale = seen is None and age_s > self._silent_after_s
            seen = self._seen[agent.agent_id] = _Seen(agent.heard, self._stopwatch(), stale)
        return seen
