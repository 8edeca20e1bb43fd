"""Submissions by several clients at once, beside queues of different lengths, against bare inserts and Ray Jobs."""

import http.client
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

import httpx
import psycopg

from benchmarks.control_plane.queue import queue_in, settle
from benchmarks.filled import TOKEN, TRAINING_INPUT, started
from benchmarks.rows import Row, Samples, interleaved
from benchmarks.tools import answers, postgresql, ray, wait_for, wait_for_ray
from trainyard_protocol.net.loopback import free_port

_CLIENTS = 8
_TABLE = "CREATE TABLE bare_jobs (key {kind} PRIMARY KEY, job_id TEXT UNIQUE, body TEXT)"
_numbers = count()

_BARE_APP = """
import sqlite3, sys, threading
import uvicorn
from fastapi import FastAPI
app, lock = FastAPI(), threading.Lock()
rows = sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False)
rows.execute("PRAGMA journal_mode=WAL")
rows.execute("PRAGMA synchronous=FULL")
rows.execute("CREATE TABLE bare_jobs (key INTEGER PRIMARY KEY, job_id TEXT UNIQUE, body TEXT)")
@app.post("/jobs")
def create(body: dict) -> dict:
    with lock:
        rows.execute("BEGIN IMMEDIATE")
        rows.execute("INSERT INTO bare_jobs (job_id, body) VALUES (?, ?)", (body["jobId"], str(body)))
        rows.execute("COMMIT")
    return body
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""

Submit = Callable[[int], None]
"""One submission of the client with that number."""


def _together(submit: Submit, seconds: float) -> float:
    """Submissions per second of all clients."""
    calls = [0] * _CLIENTS
    began = time.perf_counter()

    def client(number: int) -> None:
        while time.perf_counter() < began + seconds:
            submit(number)
            calls[number] += 1

    _in_threads(client)
    return sum(calls) / (time.perf_counter() - began)


def _in_threads(client: Callable[[int], None]) -> None:
    """Raises the error of a client."""
    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(client, range(_CLIENTS)))


def _compared(measured: Submit, against: Submit, quick: bool, warm_up: int = 1) -> Samples:
    seconds, rounds = (1.0, 3) if quick else (1.5, 4)
    sides = [partial(_together, side, seconds) for side in (measured, against)]
    return interleaved(sides[0], sides[1], rounds, "jobs/s", warm_up)


def _against_bare(queued: int, quick: bool) -> Samples:
    with ExitStack() as stack:
        return _compared(_server(stack, queued), bare_sqlite(stack), quick)


def _against_bare_postgresql(queued: int, quick: bool) -> Samples:
    with postgresql(durable=True) as databases, ExitStack() as stack:
        server = _server(stack, queued, databases.create())
        return _compared(server, _bare_postgresql(stack, databases.create(migrated=False)), quick)


def _against_fastapi(quick: bool) -> Samples:
    with ExitStack() as stack:
        return _compared(_server(stack, 0), _fastapi(stack), quick)


def _long_queue(quick: bool) -> Samples:
    with ExitStack() as stack:
        long, empty = _server(stack, 10_000), _server(stack, 0)
        return _compared(long, empty, quick, warm_up=2)  # a new server looks at each queued job


def _against_ray(quick: bool) -> Samples:
    """Ray starts a process for each job: it gets one of each client, and ends them before the next round."""
    with ray() as client, ExitStack() as stack:

        def submit(_number: int) -> None:
            client.post("/api/jobs/", json={"entrypoint": "true"}).raise_for_status()

        def by_ray() -> float:
            began = time.perf_counter()
            _in_threads(submit)
            rate = _CLIENTS / (time.perf_counter() - began)
            wait_for_ray(client)
            return rate

        by_server = partial(_together, _server(stack, 0), 1.0)
        return interleaved(by_server, by_ray, 1 if quick else 2, "jobs/s")


def _server(stack: ExitStack, queued: int, database: str = "") -> Submit:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    with queue_in(directory / "data", queued, database, agents=1) as use_cases:
        if queued:
            settle(use_cases)
    options = ["--queued-jobs", "0", "--requests-per-second", "0"]
    options += ["--database", database] if database else []
    url = stack.enter_context(started(directory, *options)).client.base_url
    return _posts(stack, url.port or 0, "/v1/projects/p/jobs")


def _posts(stack: ExitStack, port: int, path: str) -> Submit:
    """A kept connection for each client to a server on loopback."""
    connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(_CLIENTS)]
    for connection in connections:
        stack.callback(connection.close)
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def submit(number: int) -> None:
        body = {"jobId": f"job_{number}_{next(_numbers)}", "trainingInput": TRAINING_INPUT}
        connections[number].request("POST", path, json.dumps(body), headers)
        answer = connections[number].getresponse()
        text = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{answer.status}: {text.decode()}")

    return submit


def _fastapi(stack: ExitStack) -> Submit:
    """A server of one route, which inserts a row and commits."""
    directory, port = Path(stack.enter_context(tempfile.TemporaryDirectory())), free_port()
    server = subprocess.Popen([sys.executable, "-c", _BARE_APP, str(directory / "bare.db"), str(port)])
    stack.callback(server.wait)
    stack.callback(server.terminate)
    client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}"))
    wait_for(lambda: answers(client, "/docs"), "The bare server does not answer.")
    return _posts(stack, port, "/jobs")


def bare_sqlite(stack: ExitStack) -> Submit:
    """One row and one commit, with the settings of the server's database."""
    path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "bare.db"
    opened = []
    for _ in range(_CLIENTS):
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=60)
        stack.callback(connection.close)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        opened.append(connection)
    opened[0].execute(_TABLE.format(kind="INTEGER"))

    def submit(number: int) -> None:
        connection = opened[number]
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO bare_jobs (job_id, body) VALUES (?, ?)", _row(number))
        connection.execute("COMMIT")

    return submit


def _bare_postgresql(stack: ExitStack, url: str) -> Submit:
    address = url.replace("postgresql+psycopg://", "postgresql://", 1)
    opened = [stack.enter_context(psycopg.connect(address)) for _ in range(_CLIENTS)]
    opened[0].execute(_TABLE.format(kind="SERIAL"))
    opened[0].commit()

    def submit(number: int) -> None:
        opened[number].execute("INSERT INTO bare_jobs (job_id, body) VALUES (%s, %s)", _row(number))
        opened[number].commit()

    return submit


def _row(number: int) -> tuple[str, str]:
    return f"job_{number}_{next(_numbers)}", json.dumps(TRAINING_INPUT)


_ROUNDS = ", and the rounds of the scheduler, which take a third of the server's CPU at most"
_BARE = "bare insert and commit by 8 threads"
_SUBMISSIONS = "submissions by 8 clients, durable"
_BOUND = (
    "Python: 2.5 ms of CPU for a request (HTTP, routing and threads 1.3, its share of a transaction 0.5, its log and "
    "its place in the queue 0.7), against 0.1 ms for a bare insert. Tried: one transaction for all that wait, "
    "dependencies without threads, statements for many rows, one write of a new log; a parser in C would save 0.1, "
    "another event loop 0.02"
)

ROWS = (
    Row("submits", f"{_SUBMISSIONS}, SQLite", _BARE, 0.5, partial(_against_bare, 0), _BOUND, is_rate=True),
    *(
        Row(
            f"submits-{queued}",
            f"{_SUBMISSIONS}, SQLite, {queued:,} queued",
            _BARE,
            0.5,
            partial(_against_bare, queued),
            f"as with an empty queue{rounds}",
            is_rate=True,
            in_quick=False,
        )
        for queued, rounds in ((1000, ""), (10_000, _ROUNDS))
    ),
    Row(
        "submits-long-queue",
        f"{_SUBMISSIONS}, SQLite, 10,000 queued",
        "with an empty queue",
        0.9,
        _long_queue,
        (
            "rounds of the scheduler, which plan the new jobs behind the others. Tried: plans outside of "
            "transactions, with pauses of three times their length"
        ),
        is_rate=True,
    ),
    *(
        Row(
            f"submits-postgresql{suffix}",
            f"{_SUBMISSIONS}, PostgreSQL{', 10,000 queued' if queued else ''}",
            _BARE,
            0.5,
            partial(_against_bare_postgresql, queued),
            bound,
            is_rate=True,
            in_quick=False,
        )
        for suffix, queued, bound in (("", 0, _BOUND), ("-10000", 10_000, "as with an empty queue"))
    ),
    Row(
        "submits-fastapi",
        f"{_SUBMISSIONS}, SQLite",
        "a FastAPI server of one route with an insert and a commit",
        0.7,
        _against_fastapi,
        _BOUND,
        is_rate=True,
    ),
    Row(
        "submits-ray",
        f"{_SUBMISSIONS}, SQLite",
        "Ray Jobs, answered submissions of 8 clients, not durable",
        10,
        _against_ray,
        (
            "Ray answers once a job is noted in memory, and starts it later; here it is checked, audited "
            "and on the disk. Tried: as above"
        ),
        is_rate=True,
        in_quick=False,
    ),
)
