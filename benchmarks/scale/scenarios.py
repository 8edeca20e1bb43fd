"""Simulated installations: growth by ten until it breaks, a whole day, and what each change would bring."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.scale.costs import Cost, Costs, costs
from benchmarks.scale.fit import Series
from benchmarks.scale.life import SYNCS
from benchmarks.scale.limits import JOBS_PER_AGENT
from benchmarks.scale.simulation import Result, Simulation
from benchmarks.scale.workload import DAY_S, Load

_PEAK_S = 14 * 3600.0


class Scenario(NamedTuple):
    """`change` is what differs from one server process on SQLite."""

    name: str
    agents: int
    seconds: float
    cores: int = 1
    change: Callable[[Costs], Costs] = lambda unchanged: unchanged
    clock_s: float = _PEAK_S


def _fast_commits(one: Costs) -> Costs:
    """PostgreSQL on a disk whose commits take a millisecond."""
    return replace(one, commit_ms=min(one.commit_ms, 1.0))


def _quiet_syncs(one: Costs) -> Costs:
    """A sync without news is a call that asks for nothing: heartbeats in memory, written together each second. Those of
    a job, with news, cost what they did."""
    quiet = Cost(one.call_ms)
    saved = (SYNCS * (before - after) for before, after in zip(one.sync, quiet, strict=True))
    end = Cost(*(part + more for part, more in zip(one.end, saved, strict=True)))
    return replace(_fast_commits(one), sync=quiet, sync_run_ms=0.0, end=end)


def _fewer_moves(one: Costs) -> Costs:
    """One transaction for each report, in place of one for each move: a third of the transactions, half of the work."""
    quiet = _quiet_syncs(one)
    return replace(quiet, end=Cost(one.end.cpu_ms / 2, one.end.writes / 3, one.end.held_ms / 2))


def scenarios(quick: bool) -> tuple[Scenario, ...]:
    if quick:
        return (
            Scenario("growth", 10, 1200),
            Scenario("growth", 100, 300),
            Scenario("growth", 1000, 20),
            Scenario("a whole day", 10, DAY_S, clock_s=0.0),
        )
    return (
        Scenario("growth", 10, 3600),
        Scenario("growth", 100, 1800),
        Scenario("growth", 1000, 120),
        Scenario("growth", 1500, 90),
        Scenario("growth", 2000, 90),
        Scenario("growth", 3000, 90),
        Scenario("growth", 10_000, 90),
        Scenario("a whole day", 50, DAY_S, clock_s=0.0),
        Scenario("1: eight server processes on PostgreSQL", 10_000, 60, 8, _fast_commits),
        Scenario("2: and syncs without news write nothing", 10_000, 60, 8, _quiet_syncs),
        Scenario("3: and one transaction for each report", 10_000, 60, 8, _fewer_moves),
        Scenario("4: one of eight pools, on a server and a database of its own", 1250, 90, 1, _fewer_moves),
    )


def simulated(
    series: Sequence[Series], commit_ms: float, quick: bool, log: Callable[[str], None]
) -> list[tuple[Scenario, Result]]:
    """The same results each time, for the same costs."""
    found = []
    for scenario in scenarios(quick):
        began = time.monotonic()
        load = Load(scenario.agents, scenario.agents * JOBS_PER_AGENT)
        known = scenario.change(costs(series, scenario.agents, commit_ms))
        result = Simulation(load, known, scenario.cores, scenario.clock_s).run(scenario.seconds)
        if result.arrived != result.ended + result.queued + result.running:
            raise RuntimeError(f"Jobs were lost in {scenario.name}: {result}")
        found.append((scenario, result))
        log(f"{scenario.name}, {scenario.agents} agents: {time.monotonic() - began:.0f} s")
    return found


def table(results: Sequence[tuple[Scenario, Result]]) -> Iterator[str]:
    yield (
        "| installation | agents | jobs a day | simulated | asked of a core | asked of the lock | writes/s | syncs/s "
        "| answer p50, p99 | tick p50, p99 | wait p50, p95, p99 | counted as silent | queued at the end |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for scenario, one in results:
        rates = f"{one.writes / one.seconds:,.0f} | {one.syncs / one.seconds:,.1f}"
        yield (
            f"| {scenario.name}{f', {one.cores} cores' if one.cores > 1 else ''} | {one.agents:,} "
            f"| {one.agents * JOBS_PER_AGENT:,} | {_duration(one.seconds)} | {one.utilization:.0%} "
            f"| {one.lock_use:.0%} | {rates} | {_times(one.answers, 0.5, 0.99)} | {_times(one.ticks, 0.5, 0.99)} "
            f"| {_times(one.waits, 0.5, 0.95, 0.99)} | {one.silenced:,} | {one.queued:,} |"
        )


def shares(results: Sequence[tuple[Scenario, Result]]) -> Iterator[str]:
    """Table of the work that the cores are asked for, in parts of one core."""
    kinds = ("syncs", "ends", "submissions", "starts", "plans", "rounds", "reasons")
    yield f"| installation | agents | {' | '.join(kinds)} |"
    yield "|---|---|" + "---|" * len(kinds)
    for scenario, one in results:
        parts = " | ".join(f"{one.busy_s[kind] / one.seconds:.1%}" for kind in kinds)
        yield f"| {scenario.name} | {one.agents:,} | {parts} |"


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[round(part * (len(values) - 1))] if values else 0.0


def _times(values: Sequence[float], *parts: float) -> str:
    return ", ".join(_seconds(percentile(values, part)) for part in parts)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"


def _duration(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:.2g} min"
