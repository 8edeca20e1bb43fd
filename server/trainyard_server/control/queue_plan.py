"""Plan of the queue: made anew when something has changed, continued for jobs that come behind all others."""

from collections.abc import Iterable
from datetime import datetime

from trainyard_server.control.workload import QueueChanges
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.domain.scheduling.resources import AgentSnapshot
from trainyard_server.domain.scheduling.scheduler import Placement, Plan, Planner, Waiting, in_order
from trainyard_server.domain.scheduling.sharing import QueueOrder
from trainyard_server.domain.scheduling.spreading import NOTHING_SHARED, SharedDirs
from trainyard_server.domain.snapshots import JobSnapshot

_LONG = 200
"""Jobs: of a shorter queue each plan has the reasons."""


class QueuePlan:
    """Not safe for threads: its owner holds a lock."""

    def __init__(self) -> None:
        self._planner: Planner | None = None
        self._limits = Quotas()
        self._last: QueueOrder | None = None
        self._pause: tuple[datetime, datetime] | None = None
        """From the plan to the end of the first backoff, or of the first avoided agent, in it, or to when a job is
        overdue."""

    def forget(self) -> None:
        """Let the next `update` plan everything."""
        self._planner = None

    def update(
        self,
        queue: Iterable[JobSnapshot],
        agents: Iterable[AgentSnapshot],
        changes: QueueChanges,
        now: datetime,
        limits: Quotas,
        shared: SharedDirs = NOTHING_SHARED,
        explain: bool = True,
    ) -> Plan | None:
        """Plan what has changed: the whole queue, or the jobs that came behind it; None where nothing has.

        A plan with placements is made once: the next one starts with the runs that were created. Without `explain` the
        plan of a long queue ends where nothing more fits: the next one with it has the reasons why each other job
        waits.
        """
        planner, queue = self._planner, list(queue)
        if not queue:
            self.forget()
            return None
        if planner is None or limits is not self._limits or self._is_over(changes, now):
            planner, jobs = Planner(agents, now, limits, shared), in_order(queue, limits.sharing, now)
            self._limits, self._last, self._pause = limits, None, None
        else:
            jobs = in_order(changes.added.values(), limits.sharing, now)
        if not jobs:
            self._planner = planner
            return None
        placements: list[Placement] = []
        waiting: dict[int, Waiting] = {}
        is_cut = not explain and len(jobs) >= _LONG
        least = min(map(_vcpus, jobs)) if is_cut else 0
        least_spread = min((_vcpus(job) for job in jobs if len(job.gang) > 1), default=None) if is_cut else None
        for job in jobs:
            if least and planner.is_full(least, least_spread):
                self._planner = None
                return Plan(tuple(placements), {})
            answer = planner.add(job)
            if isinstance(answer, Placement):
                placements.append(answer)
            else:
                waiting[job.key] = answer
            for end in (*planner.pauses(job), limits.sharing.overdue_at(job)):
                if end <= now:
                    continue
                self._pause = now, end if self._pause is None else min(end, self._pause[1])
        self._last = limits.sharing.order(jobs[-1], now)
        self._planner = None if placements else planner
        return Plan(tuple(placements), waiting)

    def _is_over(self, changes: QueueChanges, now: datetime) -> bool:
        """Whether the plan does not hold any more for the jobs that it has."""
        added = changes.added.values()
        return (
            changes.other
            or (self._pause is not None and not self._pause[0] <= now < self._pause[1])
            or any(job.backoff_until is not None for job in added)
            or (self._last is not None and any(self._limits.sharing.order(job, now) < self._last for job in added))
        )


def _vcpus(job: JobSnapshot) -> int:
    return sum(request.resources.vcpus for request in job.gang)
