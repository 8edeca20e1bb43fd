"""CPU of short jobs, and of calls that change nothing."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import httpx
import psutil
from fastapi import FastAPI

from benchmarks.jobs.trivial import REPORTS, short_jobs
from benchmarks.rows import Row, Samples, interleaved
from benchmarks.scale.bed import agent_info, bed
from benchmarks.service import cpu_s, running, whole_cpu_s
from trainyard_protocol.wire.sync import SyncRequest, SyncResponse

_JOBS, _FEW_JOBS = 100, 20
_CALLS = 300
_PAUSE_S = 1.0  # between two questions, which cost as well


def _server_of_a_job(quick: bool) -> Samples:
    jobs = _FEW_JOBS if quick else _JOBS
    with running() as service:

        def served() -> float:
            before = cpu_s(service.server)
            short_jobs(service, jobs, _PAUSE_S)
            return (cpu_s(service.server) - before) / jobs * 1000

        return interleaved(served, partial(_by_hand, jobs), 2 if quick else 5, "ms")


def _agent_of_a_job(quick: bool) -> Samples:
    jobs = _FEW_JOBS if quick else _JOBS
    with running() as service:

        def run() -> float:
            before = whole_cpu_s(service.agent)
            short_jobs(service, jobs, _PAUSE_S)
            return (whole_cpu_s(service.agent) - before) / jobs * 1000

        return interleaved(run, partial(_by_hand, jobs), 2 if quick else 5, "ms", is_difference=True)


def _by_hand(programs: int) -> float:
    """CPU milliseconds of one of the programs, started by hand."""
    before = psutil.Process().cpu_times()
    for _ in range(programs):
        subprocess.run([sys.executable, "-m", "timeit", "-n1", "-r1", REPORTS], stdout=subprocess.DEVNULL, check=True)
    after = psutil.Process().cpu_times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return float(used) / programs * 1000


def _unchanged_call(quick: bool) -> Samples:
    """A call of an agent of which nothing has changed, and one of a bare route that reads and answers the same."""
    with bed(agents=1) as server, asyncio.Runner() as runner:
        seen = server.sync(0).version
        seen = server.sync(0, seen=seen).version
        app = FastAPI()

        @app.post("/sync")
        async def bare(body: SyncRequest) -> SyncResponse:
            return SyncResponse(version=body.seen, lease_s=None, runs=())

        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1")
        request = SyncRequest(agent=agent_info(0), runs=(), seen=seen).model_dump_json()
        headers = {"Content-Type": "application/json", "Authorization": "Bearer token"}

        def call_bare() -> object:
            return runner.run(client.post("/sync", content=request, headers=headers)).json()

        calls = partial(_cpu_ms, lambda: server.post("/agent/v1/sync", request, agent=True))
        return interleaved(calls, partial(_cpu_ms, call_bare), 3 if quick else 10, "ms")


def _cpu_ms(call: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(_CALLS):
        call()
    return (time.process_time() - began) / _CALLS * 1000


ROWS = (
    Row(
        "job-server-cpu",
        "short jobs (`print`): CPU of the server for one",
        "CPU of the program by hand",
        0.8,
        _server_of_a_job,
        bound="Python: SQLAlchemy for 45 statements in 5 transactions, FastAPI for 4 requests, the plan of the queue",
        in_quick=False,
    ),
    Row(
        "job-agent-cpu",
        "short jobs (`print`): CPU of agent, supervisor and program for one",
        "CPU of the program by hand",
        25,
        _agent_of_a_job,
        bound="the supervisor, a process for each replica; httpx; the files of a run",
        in_quick=False,
    ),
    Row(
        "idle-call",
        "a call of an agent of which nothing has changed, in the process",
        "a bare FastAPI route that reads and answers the same",
        4,
        _unchanged_call,
        bound="who calls, limits and audit: ten middlewares",
    ),
)
