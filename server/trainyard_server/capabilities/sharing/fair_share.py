"""Fair share: how accounts stand by what they used lately, and which projects are beyond their budgets."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from trainyard_protocol.states import JobState
from trainyard_server.capabilities.sharing import store, usage
from trainyard_server.capabilities.sharing.store import UnrecordedRun, UsageOfDay
from trainyard_server.capabilities.sharing.usage_recording import share_of
from trainyard_server.context import Backend
from trainyard_server.domain.scheduling.sharing import Account, FairShare, Sharing, decayed, standings

_EVERY_S = 60.0
_HALF_LIVES = 6
"""Usage before so many of them counts for nothing."""

_MIDDAY = timedelta(hours=12)


class FairShareUpdate:
    """Call `step` now and then, on each server. Standings are in `backend.quotas.sharing`."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._next_at = 0.0

    def step(self, now_s: float) -> None:
        """Compute the standings anew, once a minute by this time of a monotonic clock."""
        rules = self._backend.quotas.sharing
        if now_s < self._next_at or (rules.fair_share is None and not rules.has_budgets):
            return
        self._next_at = now_s + _EVERY_S
        now = self._backend.clock()
        month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        since = month
        if rules.fair_share is not None:
            since = min(month, now - _HALF_LIVES * rules.fair_share.half_life)
        with self._backend.store.read() as reader:
            days = store.by_day(reader, store.day_of(since))
            live = [run for run in store.live(reader) if run.job.state is not JobState.QUEUED]
            waiting = {Account(job.project, job.owner) for job in reader.queued()}
        used = _weighted(rules.fair_share, days, live, now) if rules.fair_share is not None else {}
        self._backend.quota_file.set_standings(
            standings(rules, used, waiting), _over_budget(rules, days, live, month, now)
        )


def _weighted(
    fair_share: FairShare, days: Iterable[UsageOfDay], live: Iterable[UnrecordedRun], now: datetime
) -> dict[Account, float]:
    """Weighted hours of each account, as they count now."""
    used: dict[Account, float] = defaultdict(float)
    for day in days:
        hours = (day.cpu_s + fair_share.gpu_weight * day.gpu_s) / 3600
        age = now - (datetime.fromisoformat(day.day).replace(tzinfo=UTC) + _MIDDAY)
        used[Account(day.project, day.owner)] += decayed(hours, age, fair_share.half_life)
    for run, job, replicas in live:
        shares = [share_of(replica) for replica in replicas]
        weighted_s = usage.cpu_seconds(shares, now) + fair_share.gpu_weight * usage.gpu_seconds(shares, now)
        age = (now - run.created_at) / 2
        used[Account(job.project, job.owner)] += decayed(weighted_s / 3600, age, fair_share.half_life)
    return dict(used)


def _over_budget(
    rules: Sharing, days: Iterable[UsageOfDay], live: Sequence[UnrecordedRun], month: datetime, now: datetime
) -> frozenset[str]:
    """The projects that have used more hours since the beginning of the month than their budgets."""
    if not rules.has_budgets:
        return frozenset()
    cpu: dict[str, float] = defaultdict(float)
    gpu: dict[str, float] = defaultdict(float)
    for day in days:
        if day.day >= store.day_of(month):
            cpu[day.project] += day.cpu_s / 3600
            gpu[day.project] += day.gpu_s / 3600
    for _, job, replicas in live:
        shares = [share_of(replica) for replica in replicas]
        cpu[job.project] += usage.cpu_seconds(shares, now) / 3600
        gpu[job.project] += usage.gpu_seconds(shares, now) / 3600
    return frozenset(
        project
        for project in {*cpu, *gpu}
        if _is_over(cpu[project], rules.of(project).cpu_hours) or _is_over(gpu[project], rules.of(project).gpu_hours)
    )


def _is_over(hours: float, budget: float | None) -> bool:
    return budget is not None and hours > budget
