"""A scrape of `/metrics` of 10,000 jobs and 300 agents: the CPU of the server."""

import tempfile
from pathlib import Path

from benchmarks.filled import FilledServer, add_agents, agent_info, fill, filling, started
from benchmarks.rows import Row, Samples, interleaved
from trainyard_server.storage.db.store import Store

_JOBS, _AGENTS, _SCRAPES = 10_000, 300, 20


def _scraped(quick: bool) -> Samples:
    with tempfile.TemporaryDirectory() as many, tempfile.TemporaryDirectory() as few:
        for name, jobs, agents in ((many, _JOBS, _AGENTS), (few, 100, 3)):
            fill(Path(name) / "data", jobs)
            store = Store.at(Path(name) / "data", durable=False)
            with filling(store) as writer:
                add_agents(writer, [agent_info(f"agent-{number}", 64, 2**38) for number in range(agents)])
            store.close()
        with started(Path(many)) as large, started(Path(few)) as small:
            return interleaved(lambda: _cpu_ms(large), lambda: _cpu_ms(small), 3 if quick else 10, "ms of CPU")


def _cpu_ms(server: FilledServer) -> float:
    """The CPU of the server by scrape, with that of its loops meanwhile."""
    before = sum(server.process.cpu_times()[:2])
    for _ in range(_SCRAPES):
        server.client.get("/metrics").raise_for_status()
    return (sum(server.process.cpu_times()[:2]) - before) * 1000 / _SCRAPES


ROWS = (
    Row(
        "scrape",
        "a scrape of `/metrics`, 10,000 jobs and 300 agents",
        "the same with 100 jobs and 3 agents",
        50.0,
        _scraped,
        "the count of jobs in each state, and the text of 300 agents",
        is_figure=True,
    ),
)
