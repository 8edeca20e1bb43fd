"""Costs of the server's work at 1, 10, 100 and 1,000 x: CPU time, statements, and what the database looks at."""

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

from benchmarks.scale.bed import CPUS, ServerBed, agent_info, bed
from benchmarks.scale.fit import Series
from benchmarks.scale.life import JobLife
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.machines import GIGABYTE, ReplicaRequest, Resources
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import JobState, ReplicaState
from trainyard_protocol.wire.sync import ReplicaReport, RunReport
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang
from trainyard_server.domain.scheduling.scheduler import Planner, Waiting, in_order
from trainyard_server.domain.snapshots import JobSnapshot

Measured = dict[str, float]
"""Values by unit."""

_FAILED = "filter=state%3AFAILED"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SHAPES = ((4, 1), (4, 1), (4, 2), (8, 1), (8, 2), (8, 4), (4, 4))
"""CPUs of a replica, and replicas of a gang."""


def measured_costs(quick: bool, log: Callable[[str], None]) -> list[Series]:
    """All costs; `quick` leaves out the largest size, and repeats less."""
    decades, rounds = (3, 3) if quick else (4, 5)
    series: list[Series] = []
    for name, what, axis, first, measure in _MEASURES:
        began = time.monotonic()
        at_most = 3 if measure is _notes_by_queue else 4  # one round writes at most 500 reasons
        sizes = tuple(first * 10**decade for decade in range(min(decades, at_most)))
        values = [measure(size, rounds) for size in sizes]
        series += [
            Series(f"{name}.{unit}", what, axis, unit, sizes, tuple(one[unit] for one in values))
            for unit in values[0]
            if any(one[unit] for one in values)
        ]
        log(f"{name}: {time.monotonic() - began:.0f} s")
    return series


def _ms(work: Callable[[], object]) -> float:
    """Milliseconds of CPU."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def _call(
    server: ServerBed,
    work: Callable[[], object],
    rounds: int,
    prepare: Callable[[], object] = lambda: None,
) -> Measured:
    taken = []
    for _ in range(rounds + 1):
        prepare()
        taken.append(_ms(work))
    prepare()
    counted = server.counted(work)
    return {
        "ms": statistics.median(taken[1:]),
        "statements": counted.statements,
        "steps": counted.steps,
        "writes": counted.writes,
        "held ms": counted.held_s * 1000,
    }


# The planner, without a database.


def some_agents(count: int, full: float = 0.9) -> list[AgentSnapshot]:
    """Equal machines, of which so much is in use."""
    chance = random.Random(1)  # noqa: S311 - the same each time
    return [_some_agent(chance, number, full) for number in range(count)]


def _some_agent(chance: random.Random, number: int, full: float) -> AgentSnapshot:
    gangs, first = list[Gang](), 0
    while first < CPUS:
        cpus = min(chance.choice((4, 4, 8, 8, 16)), CPUS - first)
        if chance.random() < full:
            taken = frozenset(range(first, first + cpus))
            key, project = -(number * CPUS + first) - 1, f"p{chance.randrange(20)}"
            gangs.append(Gang(key, project, taken, memory_bytes=cpus * 3 * GIGABYTE))
        first += cpus
    info = agent_info(number)
    return AgentSnapshot(info.agent_id, info.name, info.capacity, "strict", False, True, tuple(gangs))


def some_jobs(count: int) -> list[JobSnapshot]:
    chance = random.Random(2)  # noqa: S311
    gangs = {shape: gang_of_shape(*shape) for shape in _SHAPES}
    return [
        queued_job(
            number, f"p{number % 20}", gangs[chance.choice(_SHAPES)], NOW - timedelta(seconds=count - number)
        )
        for number in range(count)
    ]


def gang_of_shape(cpus: int, replicas: int) -> tuple[ReplicaRequest, ...]:
    resources = Resources(cpus, cpus * 3 * GIGABYTE)
    tasks = [Task("master", 0), *(Task("worker", number) for number in range(replicas - 1))]
    return tuple(ReplicaRequest(task, f"n1-standard-{cpus}", resources) for task in tasks)


def queued_job(
    key: int, project: str, gang: tuple[ReplicaRequest, ...], at: datetime, priority: int = 0
) -> JobSnapshot:
    state, given = JobState.QUEUED, TrainingInput()
    return JobSnapshot(
        key, project, f"job_{key}", state, given, gang, created_at=at, queued_at=at, priority=priority
    )


# Rounds of the scheduler, and syncs.


def _plan_by_agents(size: int, rounds: int) -> Measured:
    return _planned(some_agents(size), some_jobs(10), rounds)


def _plan_by_queue(size: int, rounds: int) -> Measured:
    return _planned(some_agents(100, full=1.0), some_jobs(size), rounds)


def _planned(agents: list[AgentSnapshot], queue: list[JobSnapshot], rounds: int) -> Measured:
    def plan() -> None:
        planner = Planner(agents, NOW)
        for job in in_order(queue):
            planner.add(job)

    return {"ms": statistics.median(_ms(plan) for _ in range(rounds))}


def _round_by_agents(size: int, rounds: int) -> Measured:
    return _round(size, 10, rounds)


def _round_by_queue(size: int, rounds: int) -> Measured:
    return _round(10, size, rounds)


def _changed_by_agents(size: int, rounds: int) -> Measured:
    return _round(size, 10, rounds, changed=True)


def _changed_by_queue(size: int, rounds: int) -> Measured:
    return _round(10, size, rounds, changed=True)


def _round(agents: int, queued: int, rounds: int, changed: bool = False) -> Measured:
    """One round; with `changed` a job is submitted before each."""
    with bed(agents=agents, queued=queued) as server:
        submit = partial(_submit, server, itertools.count())
        return _call(server, server.tick, rounds, prepare=submit if changed else lambda: None)


def _submit(server: ServerBed, numbers: Iterator[int]) -> None:
    JobLife(server, f"job_{next(numbers)}").submit()


def _notes_by_queue(size: int, rounds: int) -> Measured:
    """A round after which so many jobs wait for another reason."""
    numbers = itertools.count()
    with bed(agents=10, queued=size) as server:
        controller = server.use_cases.controller

        def note() -> None:
            reason = f"needs other things, {next(numbers)}"
            controller._note({key: Waiting("room", reason, key) for key in controller._workload.queue})
            controller._write_notes(datetime.now(UTC))

        return _call(server, note, rounds)


def _sync_by_agents(size: int, rounds: int) -> Measured:
    with bed(agents=size) as server:
        server.sync(1)
        seen = server.sync(0).version
        return _call(server, lambda: server.sync(0, seen=seen), 3 * rounds)


def _call_by_agents(size: int, rounds: int) -> Measured:
    """A call that does nothing: its route, its token, its answer."""
    with bed(agents=size) as server:
        return _call(server, lambda: server.call("GET", "/agent/v1/server", agent=True), 3 * rounds)


def _join_by_agents(size: int, rounds: int) -> Measured:
    """An agent that comes back with another version. Its plan is measured by itself."""
    versions = itertools.count()
    with bed(agents=size) as server:

        def join() -> None:
            server.use_cases.controller._plan_after = float("inf")
            server.sync(0, info=agent_info(0).model_copy(update={"version": str(next(versions))}))

        server.sync(1)
        return _call(server, join, rounds)


def _sync_by_runs(size: int, rounds: int) -> Measured:
    """A sync of one agent with this many replicas, each a job: the report and the orders have all of them."""
    capacity = Capacity(cpus=tuple(range(4 * size)), memory_bytes=16 * size * GIGABYTE)
    info = agent_info(0).model_copy(update={"capacity": capacity})
    running = ReplicaReport(task="master-replica-0", state=ReplicaState.RUNNING, started_at=NOW)
    numbers = itertools.count()
    with bed() as server:
        server.sync(0, info=info)
        for _ in range(size):
            _submit(server, numbers)
        for _ in range(2 + size // 50):
            server.tick()
        orders = server.sync(0, info=info).runs
        if len(orders) != size:
            raise RuntimeError(f"{len(orders)} of {size} jobs have started.")
        reports = tuple(
            RunReport(run_id=order.run_id, replicas=(running,), runtime="process") for order in orders
        )
        seen = server.sync(0, reports, info=info).version
        return _call(server, lambda: server.sync(0, reports, seen, info), rounds)


# Jobs.


def _life_by_jobs(size: int, rounds: int) -> Measured:
    """The whole life of a job of one replica and ten lines, with so many jobs in the database."""
    numbers = itertools.count()
    with bed(agents=2, ended=size) as server:
        server.sync(1)
        return _call(server, lambda: JobLife(server, f"life_{next(numbers)}").whole(), rounds)


def _submit_by_jobs(size: int, rounds: int) -> Measured:
    numbers = itertools.count()
    with bed(ended=size) as server:
        return _call(server, lambda: _submit(server, numbers), rounds)


def _get_by_jobs(path: str, query: str, size: int, rounds: int) -> Measured:
    with bed(ended=size) as server:
        return _call(server, lambda: server.call("GET", path, query=query), rounds)


_Measure = Callable[[int, int], Measured]

_MEASURES: tuple[tuple[str, str, str, int, _Measure], ...] = (
    ("plan-agents", "a whole plan, 10 queued jobs, machines 90 % full", "agents", 10, _plan_by_agents),
    ("plan-queue", "a whole plan, 100 full machines", "queued jobs", 10, _plan_by_queue),
    (
        "round-agents",
        "a round in which nothing has changed",
        "agents",
        10,
        _round_by_agents,
    ),
    (
        "round-queue",
        "the same, 10 agents",
        "queued jobs",
        10,
        _round_by_queue,
    ),
    (
        "start-agents",
        "a round that starts one job",
        "agents",
        10,
        _changed_by_agents,
    ),
    (
        "start-queue",
        "the same, 10 agents",
        "queued jobs",
        10,
        _changed_by_queue,
    ),
    ("notes-queue", "the reasons of waiting jobs, written in one round", "queued jobs", 5, _notes_by_queue),
    ("sync-agents", "a sync without news", "agents", 10, _sync_by_agents),
    ("sync-runs", "a sync without news, of one agent", "its runs", 1, _sync_by_runs),
    ("call-agents", "a call of an agent that asks for nothing", "agents", 10, _call_by_agents),
    ("join-agents", "a sync of an agent that has changed", "agents", 10, _join_by_agents),
    ("life-jobs", "the whole life of a job, 1 replica, 10 lines, 2 agents", "ended jobs", 10, _life_by_jobs),
    ("submit-jobs", "a submission", "ended jobs", 10, _submit_by_jobs),
    (
        "list-jobs",
        "a page of failed jobs",
        "ended jobs",
        100,
        partial(_get_by_jobs, "/v1/projects/p2/jobs", _FAILED),
    ),
    (
        "status-jobs",
        "`trainyard status`",
        "ended jobs",
        100,
        partial(_get_by_jobs, "/trainyard/v1/status", ""),
    ),
)


def sizes_of(series: list[Series]) -> Iterator[str]:
    """Lines of a table: each quantity at each size, with its power law."""
    yield "| what | axis | unit | values, 10 x apart | exponent | residual | last decade |"
    yield "|---|---|---|---|---|---|---|"
    for one in series:
        values = ", ".join(figure(value) for value in one.values)
        law, last = one.law, one.last_exponent
        fitted = f"{law.exponent:.2f} | {law.residual:.2f}" if law is not None else "- | -"
        end = f"{last:.2f}" if last is not None else "-"
        axis = f"{one.axis}, from {one.sizes[0]:,}"
        yield f"| {one.what} | {axis} | {one.unit} | {values} | {fitted} | {end} |"


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
