"""Costs of each kind of call, out of the measurements."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.scale.fit import Series
from benchmarks.scale.life import SYNCS


class Cost(NamedTuple):
    """Milliseconds of a core, the number of write transactions, and the milliseconds of the core inside of them."""

    cpu_ms: float
    writes: float = 0.0
    held_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one installation, of so many agents. `call_ms` is of a call that asks for nothing; `commit_ms`:
    until the disk has a write transaction; `plan_queue_ms` and `note_ms` are of each queued job."""

    call_ms: float
    sync: Cost
    sync_run_ms: float
    submit: Cost
    start: Cost
    end: Cost
    round_ms: float
    plan_ms: float
    plan_queue_ms: float
    note_ms: float
    commit_ms: float

    def syncing(self, runs: int) -> Cost:
        """A sync of an agent with so many runs."""
        return self.sync._replace(cpu_ms=self.sync.cpu_ms + runs * self.sync_run_ms)

    def planning(self, queued: int) -> float:
        """Milliseconds of a whole plan."""
        return self.plan_ms + queued * self.plan_queue_ms


def costs(series: Iterable[Series], agents: int, commit_ms: float) -> Costs:
    """The costs with so many agents."""
    by_name = {one.name: one for one in series}

    def at(name: str, size: float) -> float:
        return by_name[name].at(size)

    def slope(name: str) -> float:
        """The growth of one more, between the two largest sizes."""
        one = by_name[name]
        return max(0.0, (one.values[-1] - one.values[-2]) / (one.sizes[-1] - one.sizes[-2]))

    def of(name: str, size: float) -> Cost:
        return Cost(at(f"{name}.ms", size), at(f"{name}.writes", size), at(f"{name}.held ms", size))

    ended = by_name["life-jobs.ms"].sizes[-1]
    sync, submit, life = of("sync-agents", agents), of("submit-jobs", ended), of("life-jobs", ended)
    few = by_name["start-agents.ms"].sizes[0]
    start_ms = max(1.0, at("start-agents.ms", few) - at("plan-agents.ms", few) - at("round-agents.ms", few))
    start = Cost(start_ms, 1.0, start_ms / 2)
    # A life has syncs of an agent with one run; the rest is its log, its moves and its lines.
    shares = zip(life, submit, start, sync, strict=True)
    end = Cost(*(max(0.0, whole - one - two - SYNCS * three) for whole, one, two, three in shares))
    return Costs(
        call_ms=at("call-agents.ms", agents),
        sync=sync,
        sync_run_ms=slope("sync-runs.ms"),
        submit=submit,
        start=start,
        end=end,
        round_ms=at("round-agents.ms", agents),
        plan_ms=at("plan-agents.ms", agents),
        plan_queue_ms=slope("plan-queue.ms"),
        note_ms=slope("notes-queue.ms"),
        commit_ms=commit_ms,
    )
