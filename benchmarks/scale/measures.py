"""Costs of the server's work at 1, 10, 100 and 1,000 x: CPU time and write transactions."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count, islice

from benchmarks.scale.bed import CPUS, ServerBed, agent_info, bed
from benchmarks.scale.life import TASK, JobLife
from benchmarks.scale.series import Series
from benchmarks.scale.simulation import machines
from benchmarks.scale.workload import NOW, Load
from trainyard_protocol.job.resources import GIGABYTE, Capacity
from trainyard_protocol.states import ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport, RunReport
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.scheduling.scheduler import Planner, in_order
from trainyard_server.domain.scheduling.sharing import FIRST_COME

Measured = dict[str, float]
"""Values by unit."""

Measure = Callable[..., Measured]
"""Its arguments: `rounds`, and a size under the name of its axis."""

_AXES = {"agents": "agents", "queue": "queued jobs", "runs": "its runs", "jobs": "ended jobs"}


def measured_costs(quick: bool, log: Callable[[str], None]) -> list[Series]:
    """All costs; `quick` leaves out the largest size, and repeats less."""
    decades, rounds = (3, 3) if quick else (4, 5)
    series: list[Series] = []
    for name, axis, what, measure in _MEASURES:
        began = time.monotonic()
        sizes = tuple((1 if axis == "runs" else 10) * 10**decade for decade in range(decades))
        values = [measure(rounds=rounds, **{axis: size}) for size in sizes]
        series += [
            Series(f"{name}-{axis}.{unit}", what, _AXES[axis], unit, sizes, tuple(at[unit] for at in values))
            for unit in values[0]
            if any(at[unit] for at in values)
        ]
        log(f"{name}-{axis}: {time.monotonic() - began:.0f} s")
    return series


def _ms(work: Callable[[], object]) -> float:
    """Milliseconds of CPU."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def _call(
    server: ServerBed, work: Callable[[], object], rounds: int, prepare: Callable[[], object] = lambda: None
) -> Measured:
    times = []
    for _ in range(rounds + 1):
        prepare()
        times.append(_ms(work))
    prepare()
    counted = server.counted(work)
    return {"ms": statistics.median(times[1:]), "writes": counted.writes, "held ms": counted.held_s * 1000}


def _plan(rounds: int, agents: int, queue: int, full: float) -> Measured:
    """A plan of the queue on machines of which so much is in use, without a database."""
    chance = random.Random(1)  # noqa: S311 - the same each time
    busy = [replace(agent, gangs=tuple(_gangs(chance, agent, full))) for agent in machines(agents)]
    drawn = enumerate(islice(Load(agents).arrivals(), queue))
    jobs = [job.queued(key, NOW - timedelta(seconds=queue - key)) for key, job in drawn]

    def plan() -> None:
        planner = Planner(busy, NOW)
        for job in in_order(jobs, FIRST_COME, NOW):
            planner.add(job)

    return {"ms": statistics.median(_ms(plan) for _ in range(rounds))}


def _gangs(chance: random.Random, agent: AgentSnapshot, full: float) -> list[Gang]:
    gangs, first = list[Gang](), 0
    while first < CPUS:
        cpus = min(chance.choice((4, 4, 8, 8, 16)), CPUS - first)
        if chance.random() < full:
            key = -(int(agent.name.removeprefix("a")) * CPUS + first) - 1
            used = frozenset(range(first, first + cpus))
            gangs.append(Gang(key, f"p{chance.randrange(20)}", used, memory_bytes=cpus * 3 * GIGABYTE))
        first += cpus
    return gangs


def _round(rounds: int, agents: int, queue: int, changed: bool = False) -> Measured:
    """A round of the scheduler. With `changed` a job is submitted before each."""
    numbers = count()
    with bed(agents=agents, queued=queue) as server:

        def prepare() -> None:
            if changed:
                JobLife(server, f"job_{next(numbers)}").submit()

        return _call(server, server.tick, rounds, prepare)


def _sync(rounds: int, agents: int) -> Measured:
    with bed(agents=agents) as server:
        server.sync(1)
        seen = server.sync(0).version
        return _call(server, lambda: server.sync(0, seen=seen), 3 * rounds, server.age_contacts)


def _join(rounds: int, agents: int) -> Measured:
    """An agent that comes back with another version. Its plan is measured by itself."""
    versions = count()
    with bed(agents=agents) as server:

        def join() -> None:
            server.use_cases.controller._plan_after = dict.fromkeys((False, True), float("inf"))
            server.sync(0, info=agent_info(0).model_copy(update={"version": str(next(versions))}))

        server.sync(1)
        return _call(server, join, rounds)


def _sync_of_runs(rounds: int, runs: int) -> Measured:
    """One agent with so many replicas, each a job: the report and the orders have all of them."""
    capacity = Capacity(cpus=tuple(range(4 * runs)), memory_bytes=16 * runs * GIGABYTE)
    info = agent_info(0).model_copy(update={"capacity": capacity})
    running = ReplicaReport(task=TASK, state=ReplicaState.RUNNING, started_at=NOW)
    with bed() as server:
        server.sync(0, info=info)
        for number in range(runs):
            JobLife(server, f"job_{number}").submit()
        for _ in range(2 + runs // 50):
            server.tick()
        orders = server.sync(0, info=info).runs
        if len(orders) != runs:
            raise RuntimeError(f"{len(orders)} of {runs} jobs have started.")
        reports = tuple(RunReport(run_id=order.run_id, replicas=(running,), runtime="process") for order in orders)
        seen = server.sync(0, reports, info=info).version
        return _call(server, lambda: server.sync(0, reports, seen, info), rounds, server.age_contacts)


def _life(rounds: int, jobs: int) -> Measured:
    """The whole life of a job of one replica and ten lines, with so many jobs in the database."""
    numbers = count()
    with bed(agents=2, ended=jobs) as server:
        server.sync(1)
        return _call(server, lambda: JobLife(server, f"life_{next(numbers)}").whole(), rounds)


def _submit(rounds: int, jobs: int) -> Measured:
    numbers = count()
    with bed(ended=jobs) as server:
        return _call(server, lambda: JobLife(server, f"job_{next(numbers)}").submit(), rounds)


_PLAN_OF_TEN = "a whole plan, 10 queued jobs, machines 90 % full"
_LIFE_OF_ONE = "the whole life of a job, 1 replica, 10 lines, 2 agents"

_MEASURES: tuple[tuple[str, str, str, Measure], ...] = (
    ("plan", "agents", _PLAN_OF_TEN, partial(_plan, queue=10, full=0.9)),
    ("plan", "queue", "a whole plan, 100 full machines", partial(_plan, agents=100, full=1.0)),
    ("round", "agents", "a round in which nothing has changed", partial(_round, queue=10)),
    ("start", "agents", "a round that starts one job", partial(_round, queue=10, changed=True)),
    ("sync", "agents", "a sync without news", _sync),
    ("sync", "runs", "a sync without news, of one agent", _sync_of_runs),
    ("join", "agents", "a sync of an agent that has changed", _join),
    ("life", "jobs", _LIFE_OF_ONE, _life),
    ("submit", "jobs", "a submission", _submit),
)
