"""The benchmark of growth: fits of known laws, and a simulation that repeats itself and loses no job."""

from dataclasses import asdict

import pytest

from benchmarks.scale.costs import Cost, Costs, costs
from benchmarks.scale.fit import Series, power_law
from benchmarks.scale.limits import limits
from benchmarks.scale.simulation import Result, Simulation
from benchmarks.scale.workload import Load

COSTS = Costs(
    call_ms=1.0,
    sync=Cost(6.0, 2.0, 2.0),
    sync_run_ms=0.2,
    submit=Cost(8.0, 1.0, 2.5),
    start=Cost(6.0, 1.0, 3.0),
    end=Cost(100.0, 7.0, 30.0),
    round_ms=1.0,
    plan_ms=1.0,
    plan_queue_ms=0.01,
    note_ms=0.05,
    commit_ms=2.0,
)


def simulated(costs: Costs = COSTS, seed: int = 1, agents: int = 3, seconds: float = 900) -> Result:
    load = Load(agents, agents * 2000, seed=seed, median_s=20, mtbf_s=1800, median_down_s=600)
    return Simulation(load, costs).run(seconds)


def test_power_law_of_exact_values_is_found_with_its_residual() -> None:
    law = power_law((10, 100, 1000), (30, 300, 3000))
    assert (law.factor, law.exponent, law.residual) == pytest.approx((3, 1, 1))
    assert power_law((1, 10, 100), (1, 2, 1)).residual == pytest.approx(2 ** (2 / 3))
    assert law.at(50) == pytest.approx(150)
    with pytest.raises(ValueError, match="two different sizes"):
        power_law((10, 10), (1, 2))


def test_series_is_read_between_its_points_and_beyond_the_last() -> None:
    series = Series("plan", "", "agents", "ms", (10, 100, 1000), (5.0, 5.0, 50.0))
    assert [series.at(size) for size in (1, 10, 55, 550, 1900)] == [5.0, 5.0, 5.0, 27.5, 95.0]
    assert series.last_exponent == pytest.approx(1)


def test_simulation_repeats_itself_and_each_job_is_somewhere() -> None:
    one, again, other = simulated(), simulated(), simulated(seed=2)
    assert asdict(one) == asdict(again) != asdict(other)
    for result in (one, other):
        assert result.arrived == result.ended + result.queued + result.running
        assert result.ended > 50
        assert result.syncs < 20 * result.arrived + 3 * 900 / 20  # a few for each job, and one in each hold
        assert result.lost > 0 or result.silenced > 0
        assert len(result.waits) >= result.ended - 3 * 8  # those that ran at the beginning have not waited


def test_simulated_server_that_is_too_slow_counts_its_agents_as_silent() -> None:
    slow = Costs(
        **{**{name: getattr(COSTS, name) for name in COSTS.__slots__}, "sync": Cost(12_000.0, 2.0, 2.0)}
    )
    result = simulated(slow, agents=6, seconds=300)
    assert result.utilization > 1
    assert result.silenced > 0
    assert result.arrived == result.ended + result.queued + result.running


def test_costs_add_up_to_the_measured_life_of_a_job() -> None:
    def series(name: str, *values: float) -> list[Series]:
        units = ("ms", "writes", "held ms")
        sizes = (10, 100)
        return [
            Series(f"{name}.{unit}", "", "", unit, sizes, (value, value))
            for unit, value in zip(units, values, strict=False)
        ]

    known = [
        *series("sync-agents", 5, 2, 2),
        *series("sync-runs", 5),
        *series("call-agents", 1),
        *series("submit-jobs", 8, 1, 3),
        *series("life-jobs", 160, 24, 50),
        *series("start-agents", 10),
        Series("plan-agents.ms", "", "", "ms", (10, 100), (2.0, 20.0)),
        *series("round-agents", 1),
        *series("plan-queue", 2),
        *series("notes-queue", 1),
        *series("join-agents", 8),
    ]
    found = costs(known, agents=50, commit_ms=1.0)
    assert found.start.cpu_ms == 7
    assert found.end == Cost(160 - 8 - 7 - 8 * 5, 24 - 1 - 1 - 8 * 2, 50 - 3 - 3.5 - 8 * 2)
    by_part = {one.part: one.number for one in limits(known, commit_ms=1.0)}
    assert by_part["a core, by idle syncs"] == 20_000 / 5
    assert by_part["the lock of writers, by idle syncs"] == 20_000 / (2 + 2 * 1.0)
    both_ms = 5 / 20 + 100 * 1.6 / 86_400 * 160
    assert by_part["a core, by both, 100 jobs a day for each agent"] == pytest.approx(1000 / both_ms)
