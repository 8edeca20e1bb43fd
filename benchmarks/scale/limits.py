"""The number at which each part of one server is used up, out of the measurements, with the arithmetic written out."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.scale.costs import Costs, costs
from benchmarks.scale.fit import Series
from benchmarks.scale.life import SYNCS
from benchmarks.scale.simulation import HOLD_S, SILENT_S
from benchmarks.scale.workload import DAY_S, Load

JOBS_PER_AGENT = 100
"""Jobs a day for each agent."""

RUNS = 4
"""Runs on an agent."""


class Limit(NamedTuple):
    part: str
    arithmetic: str
    number: float
    unit: str


def limits(series: Sequence[Series], commit_ms: float) -> list[Limit]:
    """First of what an installation asks for as a whole, then of each kind of call as if it came alone."""
    found = sorted(_of_agents(series, commit_ms), key=lambda one: one.number)
    found = _of_both(series, commit_ms) + found
    return found + sorted(_of_jobs(series, commit_ms), key=lambda one: one.number)


def _of_both(series: Sequence[Series], commit_ms: float) -> list[Limit]:
    one, a_second = costs(series, 1000, commit_ms), JOBS_PER_AGENT * (1 + Load(1, 1).swing) / DAY_S
    life, sync = _life(one), one.syncing(RUNS)
    found = []
    for part, of_sync, of_life in (
        ("a core", sync.cpu_ms, life[0]),
        ("the lock of writers", sync.held_ms + sync.writes * commit_ms, life[2] + life[1] * commit_ms),
    ):
        found.append(
            Limit(
                f"{part}, by both, {JOBS_PER_AGENT} jobs a day for each agent",
                f"1 s / ({of_sync:.1f} ms / {HOLD_S:g} + {a_second * 1000:.2f} / 1000 x {of_life:.0f} ms)",
                1000 / (of_sync / HOLD_S + a_second * of_life),
                "agents",
            )
        )
    return sorted(found, key=lambda one: one.number)


def _of_agents(series: Sequence[Series], commit_ms: float) -> list[Limit]:
    one = costs(series, 1000, commit_ms)
    sync = one.syncing(RUNS)
    holds_ms = sync.held_ms + sync.writes * commit_ms
    by_name = {each.name: each for each in series}
    plan = by_name["plan-agents.ms"]
    plan_ms = (plan.values[-1] - plan.values[-2]) / (plan.sizes[-1] - plan.sizes[-2])
    joined = by_name["join-agents.ms"].values[-1]
    return [
        Limit(
            "a core, by idle syncs",
            f"{HOLD_S:g} s / {sync.cpu_ms:.1f} ms, {RUNS} runs on each agent",
            HOLD_S * 1000 / sync.cpu_ms,
            "agents",
        ),
        Limit(
            "the lock of writers, by idle syncs",
            f"{HOLD_S:g} s / ({sync.held_ms:.1f} ms held + {sync.writes:.0f} commits of {commit_ms:.1f} ms)",
            HOLD_S * 1000 / holds_ms,
            "agents",
        ),
        Limit(
            "agents that call at once after a restart of the server: none counts as silent",
            f"{SILENT_S:g} s / {joined:.1f} ms",
            SILENT_S * 1000 / joined,
            "agents",
        ),
        Limit(
            "a plan of 1 s",
            f"1 s / {plan_ms * 1000:.0f} us for each machine",
            1000 / plan_ms,
            "agents",
        ),
    ]


def _of_jobs(series: Sequence[Series], commit_ms: float) -> list[Limit]:
    one, peak = costs(series, 1000, commit_ms), 1 + Load(1, 1).swing
    life = _life(one)
    holds_ms = life[2] + life[1] * commit_ms
    return [
        Limit(
            "a core, by the calls for jobs, in the hour of most",
            f"86,400 s / {life[0]:.0f} ms / {peak:g}",
            DAY_S * 1000 / life[0] / peak,
            "jobs a day",
        ),
        Limit(
            "the lock of writers, by jobs, in the hour of most",
            f"86,400 s / ({life[2]:.0f} ms held + {life[1]:.0f} commits of {commit_ms:.1f} ms) / {peak:g}",
            DAY_S * 1000 / holds_ms / peak,
            "jobs a day",
        ),
    ]


def _life(one: Costs) -> tuple[float, float, float]:
    """Of a job of one replica: milliseconds, write transactions, milliseconds with the lock."""
    parts = [one.submit, one.start, one.end, *[one.sync] * SYNCS]
    cpu, writes, held = (sum(part[number] for part in parts) for number in range(3))
    return cpu, writes, held
