"""Order of the ends of a gang, whose times have whole seconds.

Two replicas of one second are told apart by the last lines of their logs, which have exact times: one that fails of
another says so after that one has ended.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from trainyard_agent.engines.kubernetes.pods.status import PodState

SETTLE_S = 1.5
"""Kubelets look at their containers once a second. So long after the first report of an end, all earlier ends of its
gang are known."""


@dataclass(slots=True)
class EndOrder:
    """The ends of one run that were seen and not told yet. `seen`: when each of them was first."""

    seen: dict[str, float] = field(default_factory=dict)

    def due(
        self, states: Mapping[str, PodState], now: float, rank: Callable[[str, bool], tuple[str, int]]
    ) -> list[str]:
        """The tasks whose ends can be told now, the first end first. `states`: of all whose ends were not told.

        `rank` orders the ends of one second; its second argument says whether there are several.
        """
        ends = {task: state.exit.finished_at.replace(microsecond=0) for task, state in states.items() if state.exit}
        for task in ends:
            self.seen.setdefault(task, now)
        due = {task for task in ends if states[task].started_at is None or now - self.seen[task] >= SETTLE_S}
        if len(ends) == len(states):
            due = set(ends)
        if not due:
            return []
        in_second = Counter(ends.values())

        def key(task: str) -> tuple[datetime, tuple[str, int]]:
            return ends[task], rank(task, in_second[ends[task]] > 1)

        order = sorted(ends, key=key)
        return order[: 1 + max(order.index(task) for task in due)]
