"""The number at which each part of one server is used up, out of the measurements, with the arithmetic written out."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.scale.costs import Cost, costs
from benchmarks.scale.fit import Series
from benchmarks.scale.life import SYNCS
from benchmarks.scale.simulation import HOLD_S, SILENT_S
from benchmarks.scale.workload import DAY_S, Load

JOBS_PER_AGENT = 100
"""Jobs a day for each agent."""

RUNS = 4
"""Runs on an agent."""

_PEAK = 1 + Load(1, 1).swing
_EACH = f"{JOBS_PER_AGENT} jobs a day for each agent"


class Limit(NamedTuple):
    part: str
    arithmetic: str
    number: float
    unit: str = "agents"


def limits(series: Sequence[Series], commit_ms: float) -> list[Limit]:
    """First of what an installation asks for as a whole, then of each kind of call as if it came alone."""
    known = costs(series, 1000, commit_ms)
    by_name = {one.name: one for one in series}
    sync = known.syncing(RUNS)
    life = Cost(*map(sum, zip(known.submit, known.start, known.end, *[known.sync] * SYNCS, strict=True)))
    parts = (_of_both(sync, life, commit_ms), _of_agents(sync, by_name, commit_ms), _of_jobs(life, commit_ms))
    return [limit for part in parts for limit in sorted(part, key=lambda one: one.number)]


def _of_both(sync: Cost, life: Cost, commit_ms: float) -> Iterator[Limit]:
    a_second = JOBS_PER_AGENT * _PEAK / DAY_S
    for part, sync_ms, life_ms in (
        ("a core", sync.cpu_ms, life.cpu_ms),
        ("the lock of writers", _held_ms(sync, commit_ms), _held_ms(life, commit_ms)),
    ):
        arithmetic = (
            f"1 s / ({sync_ms:.1f} ms / {HOLD_S:g} + {a_second * 1000:.2f} / 1000 x {life_ms:.0f} ms)"
        )
        number = 1000 / (sync_ms / HOLD_S + a_second * life_ms)
        yield Limit(f"{part}, by both, {_EACH}", arithmetic, number)


def _of_agents(sync: Cost, by_name: dict[str, Series], commit_ms: float) -> Iterator[Limit]:
    idle = f"{HOLD_S:g} s / {sync.cpu_ms:.1f} ms, {RUNS} runs on each agent"
    yield Limit("a core, by idle syncs", idle, HOLD_S * 1000 / sync.cpu_ms)
    held = f"{HOLD_S:g} s / ({sync.held_ms:.1f} ms held + {sync.writes:.0f} commits of {commit_ms:.1f} ms)"
    yield Limit("the lock of writers, by idle syncs", held, HOLD_S * 1000 / _held_ms(sync, commit_ms))
    joined_ms = by_name["join-agents.ms"].values[-1]
    yield Limit(
        "agents that call at once after a restart of the server: none counts as silent",
        f"{SILENT_S:g} s / {joined_ms:.1f} ms",
        SILENT_S * 1000 / joined_ms,
    )
    plan = by_name["plan-agents.ms"]
    plan_ms = (plan.values[-1] - plan.values[-2]) / (plan.sizes[-1] - plan.sizes[-2])
    yield Limit("a plan of 1 s", f"1 s / {plan_ms * 1000:.0f} us for each machine", 1000 / plan_ms)


def _of_jobs(life: Cost, commit_ms: float) -> Iterator[Limit]:
    held = f"({life.held_ms:.0f} ms held + {life.writes:.0f} commits of {commit_ms:.1f} ms)"
    for part, arithmetic, life_ms in (
        ("a core, by the calls for jobs", f"{life.cpu_ms:.0f} ms", life.cpu_ms),
        ("the lock of writers, by jobs", held, _held_ms(life, commit_ms)),
    ):
        number = DAY_S * 1000 / life_ms / _PEAK
        arithmetic = f"86,400 s / {arithmetic} / {_PEAK:g}"
        yield Limit(f"{part}, in the hour of most", arithmetic, number, "jobs a day")


def _held_ms(call: Cost, commit_ms: float) -> float:
    """Milliseconds for which a call holds the lock of writers."""
    return call.held_ms + call.writes * commit_ms
