"""Rounds of the scheduler over a long queue."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import cycle
from pathlib import Path

from benchmarks.filled import add_agents, add_queue, agent_info, filling
from benchmarks.rows import Row, Samples, interleaved
from benchmarks.scale.bed import ServerBed, bed
from benchmarks.tools import postgresql
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.logs import LogChunk, LogEnd, digest
from trainyard_protocol.wire.sync import ExitReport, ReplicaReport, RunReport
from trainyard_server.config.settings import Settings
from trainyard_server.domain.scheduling.quotas import Quotas
from trainyard_server.use_cases import UseCases

AGENTS = 300
_MANY, _FEW = 10_000, 100
_MACHINES = 50  # each with room for one job


@contextmanager
def queue_in(data_dir: Path, queued: int, database: str = "", agents: int = AGENTS) -> Iterator[UseCases]:
    """The use cases of a server with a queue, whose rounds this process runs."""
    settings = Settings(data_dir=data_dir, database=database, run_loops=False, durable=False)
    use_cases = UseCases(settings)
    try:
        with filling(use_cases.backend.store) as writer:
            add_agents(writer, [agent_info(f"a{number}", 16, 64 * GIGABYTE) for number in range(agents)])
            add_queue(writer, queued)
        yield use_cases
    finally:
        use_cases.backend.store.close()


def settle(use_cases: UseCases) -> None:
    """Run rounds until the reasons to wait and the service's lines of all queued jobs are written."""
    for _ in range(80):
        use_cases.controller.tick()


def _tick(use_cases: UseCases) -> float:
    began = time.process_time()
    use_cases.controller.tick()
    return (time.process_time() - began) * 1000


def _first_round(quick: bool) -> Samples:
    def first(queued: int) -> float:
        with tempfile.TemporaryDirectory() as name, queue_in(Path(name), queued) as use_cases:
            return _tick(use_cases)

    return interleaved(partial(first, _MANY), partial(first, _FEW), 2 if quick else 5, "ms", warm_up=0)


def _later_round(quick: bool, long: str = "", short: str = "") -> Samples:
    """`long`, `short`: the databases; without them SQLite's."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:

        def side(queued: int, database: str) -> Callable[[], float]:
            server = stack.enter_context(queue_in(Path(name) / str(queued), queued, database))
            settle(server)
            return partial(_tick, server)

        return interleaved(side(_MANY, long), side(_FEW, short), 20 if quick else 100, "ms")


def _later_round_postgresql(quick: bool) -> Samples:
    with postgresql() as server:
        return _later_round(quick, server.create(), server.create())


def _next_start(quick: bool) -> Samples:
    """CPU from the end of a run to the start of the next one, of a queue that fits, with priorities and quotas."""

    def side(stack: ExitStack, queued: int) -> Callable[[], float]:
        server = stack.enter_context(bed(_MACHINES, settled=False, cpus=4))
        server.use_cases.backend.quota_file.quotas = Quotas({"jobs": _MACHINES})
        with filling(server.use_cases.backend.store) as writer:
            add_queue(writer, queued, fits=True)
        server.settle()
        turns = cycle(range(_MACHINES))
        return lambda: _end_one(server, next(turns))

    with ExitStack() as stack:
        return interleaved(side(stack, _MANY), side(stack, 2 * _FEW), 5 if quick else 30, "ms")


def _end_one(server: ServerBed, number: int) -> float:
    """End the run of a machine. Milliseconds of CPU of the call after which its next one is ordered."""
    (order,) = (run for run in server.sync(number).runs if run.target == "run")
    for state in (ReplicaState.RUNNING, ReplicaState.EXITED):
        at = datetime.now(UTC)
        ended = ExitReport(code=0, reason=Reason.COMPLETED, message="", finished_at=at)
        replica = ReplicaReport(
            task=order.replicas[0].task,
            state=state,
            address="127.0.0.1:2222",
            started_at=at,
            exit=ended if state is ReplicaState.EXITED else None,
        )
        server.sync(number, (RunReport(run_id=order.run_id, replicas=(replica,), runtime="process"),))
    chunk = LogChunk(start=0, end=LogEnd(count=0, sha256=digest(())))
    path = f"/agent/v1/runs/{order.run_id}/replicas/{order.replicas[0].task}/logs"
    server.use_cases.controller._plan_after[False] = 0.0  # of the report before
    began = time.process_time()
    server.post(path, chunk.model_dump_json(), agent=True)
    took = (time.process_time() - began) * 1000
    if not any(run.target == "run" and run.run_id != order.run_id for run in server.sync(number).runs):
        raise RuntimeError("Nothing has started in its place.")
    return took


_NOTHING = "the same with 100 queued"

ROWS = (
    Row(
        "round-first",
        "the first round of a server, 10,000 queued, 300 agents: CPU",
        _NOTHING,
        100,
        _first_round,
        bound="reading each queued job once",
    ),
    Row(
        "round-unchanged",
        "a round in which nothing has changed, 10,000 queued, 300 agents: CPU",
        _NOTHING,
        20,
        _later_round,
        bound="nothing that is queued: two queries, and the heartbeats of 300 agents",
    ),
    Row(
        "round-unchanged-postgresql",
        "the same on PostgreSQL: CPU of the server",
        _NOTHING,
        20,
        _later_round_postgresql,
        bound="as on SQLite",
        in_quick=False,
    ),
    Row(
        "next-start",
        "10,000 queued jobs that fit, priorities, quotas, 50 machines: CPU from the end of a run to the next start",
        "the same with 200 queued",
        2.0,
        _next_start,
        bound="the plan, which looks at what has changed, and three transactions",
    ),
)
