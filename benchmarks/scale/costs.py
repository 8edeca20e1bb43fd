"""Costs of each kind of call, out of the measurements."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.scale.life import SYNCS
from benchmarks.scale.series import Series


class Cost(NamedTuple):
    """Milliseconds of a core, the number of write transactions, and the milliseconds of the core inside of them."""

    cpu_ms: float
    writes: float = 0.0
    held_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one installation. `commit_ms`: until the disk has a write transaction; `plan_queue_ms` is of each
    queued job, `sync_run_ms` of each run of the agent."""

    sync: Cost
    sync_run_ms: float
    submit: Cost
    start: Cost
    end: Cost
    round_ms: float
    plan_ms: float
    plan_queue_ms: float
    commit_ms: float

    def syncing(self, runs: int) -> Cost:
        """A sync of an agent with so many runs."""
        return self.sync._replace(cpu_ms=self.sync.cpu_ms + runs * self.sync_run_ms)

    def planning(self, queued: int, whole: bool) -> Cost:
        """A plan of the whole queue, or of a job behind it."""
        return Cost(self.plan_ms + queued * self.plan_queue_ms if whole else self.plan_queue_ms)


def costs(series: Iterable[Series], agents: int, commit_ms: float) -> Costs:
    """The costs with so many agents."""
    by_name = {measured.name: measured for measured in series}

    def call(name: str, size: float) -> Cost:
        return Cost(*(by_name[f"{name}.{unit}"].at(size) for unit in ("ms", "writes", "held ms")))

    ended = by_name["life-jobs.ms"].sizes[-1]
    sync, submit, life = call("sync-agents", agents), call("submit-jobs", ended), call("life-jobs", ended)
    starting, plan, nothing = (by_name[f"{name}-agents.ms"] for name in ("start", "plan", "round"))
    start_ms = max(1.0, starting.values[0] - plan.values[0] - nothing.values[0])
    start = Cost(start_ms, 1.0, start_ms / 2)
    # A life has syncs of an agent with one run; the rest is its log, its moves and its lines.
    parts = zip(life, submit, start, sync, strict=True)
    end = Cost(*(max(0.0, whole - first - second - SYNCS * each) for whole, first, second, each in parts))
    return Costs(
        sync=sync,
        sync_run_ms=by_name["sync-runs.ms"].slope,
        submit=submit,
        start=start,
        end=end,
        round_ms=nothing.at(agents),
        plan_ms=plan.at(agents),
        plan_queue_ms=by_name["plan-queue.ms"].slope,
        commit_ms=commit_ms,
    )
