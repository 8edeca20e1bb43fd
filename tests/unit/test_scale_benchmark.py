"""The benchmark of growth: values between measured sizes, and a simulation that repeats itself and loses no job."""

from dataclasses import asdict, replace

import pytest

from benchmarks.scale.costs import Cost, Costs, costs
from benchmarks.scale.life import SYNCS
from benchmarks.scale.series import Series
from benchmarks.scale.simulation import Result, Simulation
from benchmarks.scale.workload import Load

COSTS = Costs(
    sync=Cost(6.0, 2.0, 2.0),
    sync_run_ms=0.2,
    submit=Cost(8.0, 1.0, 2.5),
    start=Cost(6.0, 1.0, 3.0),
    end=Cost(100.0, 7.0, 30.0),
    round_ms=1.0,
    plan_ms=1.0,
    plan_queue_ms=0.01,
    commit_ms=2.0,
)


def simulated(costs: Costs = COSTS, seed: int = 1, agents: int = 3, seconds: float = 900) -> Result:
    return Simulation(Load(agents, jobs_per_agent=1000, seed=seed, median_s=20), costs).run(seconds)


def test_series_is_read_between_its_points_and_beyond_the_last() -> None:
    series = Series("plan", "", "agents", "ms", (10, 100, 1000), (5.0, 5.0, 50.0))
    assert [series.at(size) for size in (1, 10, 55, 550, 1900)] == [5.0, 5.0, 5.0, 27.5, 95.0]
    assert series.slope == pytest.approx(0.05)


def test_simulation_repeats_itself_and_each_job_is_somewhere() -> None:
    first, again, other = simulated(), simulated(), simulated(seed=2)
    assert asdict(first) == asdict(again) != asdict(other)
    for result in (first, other):
        assert result.arrived == result.ended + result.queued + result.running
        assert result.ended > 30
        assert result.silenced == 0
        assert len(result.answers) < 20 * result.arrived + 3 * 900 / 20  # some for each job, and for each hold
        assert len(result.waits) >= result.ended - 3 * 8  # those that ran at the beginning have not waited


def test_simulated_server_that_is_too_slow_counts_its_agents_as_silent() -> None:
    slow = replace(COSTS, sync=Cost(12_000.0, 2.0, 2.0))
    result = simulated(slow, agents=6, seconds=300)
    assert result.server.core_s > result.seconds
    assert result.silenced > 0
    assert result.arrived == result.ended + result.queued + result.running


def test_costs_add_up_to_the_measured_life_of_a_job() -> None:
    measured = {
        "sync-agents": (5, 2, 2),
        "sync-runs": (5,),
        "submit-jobs": (8, 1, 3),
        "life-jobs": (160, 24, 50),
        "start-agents": (10,),
        "plan-agents": (2,),
        "round-agents": (1,),
        "plan-queue": (2,),
    }
    units = ("ms", "writes", "held ms")
    series = [
        Series(f"{name}.{unit}", "", "", unit, (10, 100), (value, value))
        for name, values in measured.items()
        for unit, value in zip(units, values, strict=False)
    ]
    known = costs(series, agents=50, commit_ms=1.0)
    assert known.start.cpu_ms == 7
    assert known.end == Cost(160 - 8 - 7 - SYNCS * 5, 24 - 1 - 1 - SYNCS * 2, 50 - 3 - 3.5 - SYNCS * 2)
