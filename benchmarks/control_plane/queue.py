"""Rounds of the scheduler over a long queue."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.databases import postgresql
from benchmarks.filled import add_agents, add_queue, agent_info
from benchmarks.rows import Row, Samples, interleaved
from trainyard_protocol.job.machines import GIGABYTE
from trainyard_server.config.settings import Settings
from trainyard_server.use_cases import UseCases

AGENTS = 300


@contextmanager
def rounds(queued: int, database: str = "") -> Iterator[UseCases]:
    """The use cases of a server with a queue, whose rounds this process runs."""
    with tempfile.TemporaryDirectory() as directory, queue_in(Path(directory), queued, database) as use_cases:
        yield use_cases


@contextmanager
def queue_in(data_dir: Path, queued: int, database: str = "", agents: int = AGENTS) -> Iterator[UseCases]:
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
        with rounds(queued) as use_cases:
            return _tick(use_cases)

    return interleaved(partial(first, 10_000), partial(first, 100), 2 if quick else 5, "ms", warm_up=0)


def _later_round(quick: bool) -> Samples:
    return _unchanged(quick, "", "")


def _later_round_postgresql(quick: bool) -> Samples:
    with postgresql() as server:
        return _unchanged(quick, server.create(), server.create())


def _unchanged(quick: bool, *databases: str) -> Samples:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(rounds(queued, database))
            for queued, database in zip((10_000, 100), databases, strict=True)
        ]
        for use_cases in servers:
            settle(use_cases)
        sides = [partial(_tick, use_cases) for use_cases in servers]
        return interleaved(sides[0], sides[1], 20 if quick else 100, "ms")


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
