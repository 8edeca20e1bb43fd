"""Rounds of the scheduler over a long queue."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.filled import add_agents, add_queue, agent_info
from benchmarks.rows import Row, Samples, interleaved
from benchmarks.tools import postgresql
from trainyard_protocol.job.machines import GIGABYTE
from trainyard_server.config.settings import Settings
from trainyard_server.use_cases import UseCases

AGENTS = 300
_MANY, _FEW = 10_000, 100


@contextmanager
def queue_in(data_dir: Path, queued: int, database: str = "", agents: int = AGENTS) -> Iterator[UseCases]:
    """The use cases of a server with a queue, whose rounds this process runs."""
    settings = Settings(data_dir=data_dir, database=database, run_loops=False, durable=False)
    use_cases = UseCases(settings)
    try:
        with use_cases.backend.store.write() as writer:
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
)
