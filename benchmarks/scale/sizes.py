"""Memory of the server for each agent, job and held connection, and bytes on its disk for each job and line."""

import asyncio
import gc
import hashlib
import resource
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from benchmarks.filled import AGENT_TOKEN, FilledServer, started
from benchmarks.scale.bed import PROJECT, ServerBed, agent_info, bed
from benchmarks.scale.fit import Series
from benchmarks.scale.life import JobLife
from trainyard_protocol.fields import rfc3339
from trainyard_protocol.wire.agents import AGENT_KEY
from trainyard_protocol.wire.logs import LogLine
from trainyard_protocol.wire.sync import SyncRequest
from trainyard_server.storage.logs.store import Stream

_SETTLE_S = 2.0


def measured_sizes(quick: bool, log: Callable[[str], None]) -> list[Series]:
    """Bytes at 1, 10, 100 and 1,000 x; `quick` leaves out the largest size."""
    decades = 3 if quick else 4
    found = []
    for name, what, axis, first, measure in (
        ("memory-agents", "the scheduler's view of agents", "agents", 10, _view_of_agents),
        ("memory-queue", "the scheduler's view of queued jobs", "queued jobs", 10, _view_of_queue),
        ("disk-lines", "the log of one replica", "lines of 60 characters", 100, _log_bytes),
    ):
        sizes = tuple(first * 10**decade for decade in range(decades))
        found.append(Series(name, what, axis, "bytes", sizes, tuple(float(measure(size)) for size in sizes)))
    found += _disk_of_jobs((2, 20) if quick else (10, 100))
    held = _held_syncs((1, 10, 100) if quick else (1, 10, 100, 1000))
    found.append(held)
    for one in found:
        log(f"{one.name}: {each(one):,.0f} bytes each")
    return found


def each(series: Series) -> float:
    """Bytes of one more, between the two largest sizes."""
    return (series.values[-1] - series.values[-2]) / (series.sizes[-1] - series.sizes[-2])


def _view(server: ServerBed) -> int:
    """Bytes that the scheduler keeps after it has planned."""
    gc.collect()
    tracemalloc.start()
    for _ in range(3):
        server.tick()
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


def _view_of_agents(size: int) -> int:
    with bed(agents=size, queued=1, settled=False) as server:
        return _view(server)


def _view_of_queue(size: int) -> int:
    with bed(agents=1, queued=size, settled=False) as server:
        return _view(server)


def _log_bytes(size: int) -> int:
    with bed() as server:
        logs, line = (
            server.use_cases.backend.logs,
            "epoch 1 step 100 loss 0.1234 examples/s 4711 lr 0.0010000000",
        )
        time = rfc3339(server.use_cases.backend.clock())
        lines = [LogLine(time=time, stream="stdout", text=line)] * size
        for start in range(0, size, 1000):
            logs.append(PROJECT, "job", Stream(1, "master-replica-0"), start, lines[start : start + 1000], 0)
        return _bytes_below(server.use_cases.backend.settings.data_dir / "logs")


def _disk_of_jobs(sizes: tuple[int, ...]) -> list[Series]:
    """The growth of the database and of the logs by jobs of one replica and ten lines that ran to their end."""
    with bed(agents=1) as server:
        server.tick()
        JobLife(server, "first").whole()
        logs = server.use_cases.backend.settings.data_dir / "logs"
        before, logs_before, lived = _pages(server), _bytes_below(logs), 0
        rows, lines = list[float](), list[float]()
        for size in sizes:
            for number in range(lived, size):
                JobLife(server, f"job_{number}").whole()
            lived = size
            rows.append(float(max(1, _pages(server) - before)))
            lines.append(float(_bytes_below(logs) - logs_before))
    return [
        Series("disk-jobs", "the database, ended jobs of one replica", "jobs", "bytes", sizes, tuple(rows)),
        Series("disk-logs", "their logs, 10 lines each", "jobs", "bytes", sizes, tuple(lines)),
    ]


def _pages(server: ServerBed) -> int:
    """Bytes of the database, in whole pages."""
    with server.use_cases.backend.store.read() as reader:
        connection = reader.session.connection()
        size = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        return int(size) * int(pages)


def _bytes_below(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _held_syncs(sizes: tuple[int, ...]) -> Series:
    """Resident memory of a server process for connections whose answers it holds."""
    with suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with (
        tempfile.TemporaryDirectory() as name,
        started(Path(name) / "data", Path(name), agents=True) as server,
    ):
        values = asyncio.run(_grow(server, sizes))
    return Series("memory-syncs", "a server process, held syncs", "agents", "bytes", sizes, values)


async def _grow(server: FilledServer, sizes: tuple[int, ...]) -> tuple[float, ...]:
    process = psutil.Process(server.pid)
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    headers = {"Authorization": f"Bearer {AGENT_TOKEN}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(
        base_url=server.client.base_url, headers=headers, limits=unlimited, timeout=60
    ) as client:
        for warm in range(20):
            await _sync(client, 1_000_000 + warm)
        before, held, values = process.memory_info().rss, list[asyncio.Task[str]](), []
        for size in sizes:
            for number in range(len(held), size):
                version = await _sync(client, number)
                held.append(asyncio.create_task(_sync(client, number, version, wait_s=20.0)))
            await asyncio.sleep(_SETTLE_S)
            values.append(float(max(1, process.memory_info().rss - before)))
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        return tuple(values)


async def _sync(client: httpx.AsyncClient, number: int, seen: str = "", wait_s: float = 0.0) -> str:
    """The version of the answer to a sync of an agent."""
    body = SyncRequest(agent=agent_info(number), runs=(), wait_s=wait_s, seen=seen).model_dump_json()
    key = hashlib.sha256(str(number).encode()).hexdigest()
    answer = await client.post("/agent/v1/sync", content=body, headers={AGENT_KEY: key})
    version: str = answer.raise_for_status().json()["version"]
    return version
