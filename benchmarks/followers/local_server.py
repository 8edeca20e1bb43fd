"""A server process, and an agent with scripted replicas: one prints endlessly, the others exit immediately."""

import contextlib
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from trainyard_protocol.fields import rfc3339
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.agents import AGENT_KEY, AgentInfo
from trainyard_protocol.wire.logs import LogChunk, LogDigest, LogEnd, LogLine
from trainyard_protocol.wire.sync import (
    ExitReport,
    ReplicaReport,
    RunOrder,
    RunReport,
    SyncRequest,
    SyncResponse,
)

PROJECT, CHATTY, TASK = "p", "chatty", "master-replica-0"
CHUNK_S = 0.05
START_S = 60.0

_KEY = secrets.token_hex(32)
_INFO = AgentInfo(
    agent_id="scripted",
    name="scripted",
    version="0",
    runtime="fake",
    capacity_mode="strict",
    runs_images=False,
    capacity=Capacity(cpus=tuple(range(64)), memory_bytes=2**40),
)


class BenchmarkError(Exception):
    """The measurement failed."""


@dataclass(frozen=True)
class ServerProcess:
    """URL, process id and tokens of a server."""

    url: str
    pid: int
    admin: str = field(repr=False)
    agent: str = field(repr=False)

    def cpu_s(self) -> float:
        """CPU seconds of the server so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def client(self, token: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}", AGENT_KEY: _KEY}
        return httpx.Client(base_url=self.url, timeout=60, headers=headers)


@contextmanager
def serving(directory: Path) -> Iterator[ServerProcess]:
    """Run a server process with an empty data directory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tokens = {role: secrets.token_hex() for role in ("admin", "agent")}
    arguments = ["--data-dir", str(directory / "data"), "--port", str(port), "--log-level", "warning"]
    for role, token in tokens.items():
        (directory / role).touch(0o600)
        (directory / role).write_text(token, encoding="utf-8")
        arguments += ["--token-file", f"{role}={directory / role}"]
    with subprocess.Popen([sys.executable, "-m", "trainyard_server", *arguments]) as process:
        try:
            address = ServerProcess(f"http://127.0.0.1:{port}", process.pid, tokens["admin"], tokens["agent"])
            _wait_for(process, address)
            yield address
        finally:
            process.terminate()


def _wait_for(process: "subprocess.Popen[bytes]", address: ServerProcess) -> None:
    deadline = time.monotonic() + START_S
    with httpx.Client() as client:
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{address.url}/healthz").status_code == 200:
                    return
            time.sleep(0.05)
    raise BenchmarkError("The server does not respond.")


class ScriptedAgent:
    """Accepts every run. The replica of the job `chatty` keeps running; any other exits when it is placed.

    `placed` has the time (time.monotonic) at which the agent received each job's run.
    """

    def __init__(self, address: ServerProcess) -> None:
        self._address = address
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._sync_forever, daemon=True)
        self._error: BaseException | None = None
        self.placed: dict[str, tuple[float, RunOrder]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=60)

    def wait(self, job_id: str, timeout_s: float = 60) -> tuple[float, RunOrder]:
        """Wait for the placement of a job; returns its time and run. Raises BenchmarkError."""
        with self._changed:
            if not self._changed.wait_for(lambda: job_id in self.placed or self._error, timeout_s):
                raise BenchmarkError(f"The job {job_id} was not placed within {timeout_s:g} s.")
            if self._error is not None:
                raise BenchmarkError("The scripted agent failed.") from self._error
            return self.placed[job_id]

    def _sync_forever(self) -> None:
        try:
            with self._address.client(self._address.agent) as client:
                seen = ""
                reports: tuple[RunReport, ...] = ()
                while not self._stopped.is_set():
                    request = SyncRequest(agent=_INFO, runs=reports, wait_s=2, seen=seen)
                    response = client.post("/agent/v1/sync", content=request.model_dump_json())
                    at = time.monotonic()
                    orders = SyncResponse.model_validate_json(response.raise_for_status().content)
                    with self._changed:
                        for order in orders.runs:
                            self.placed.setdefault(order.job_id, (at, order))
                        self._changed.notify_all()
                    seen, reports = orders.version, tuple(self._report(client, run) for run in orders.runs)
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _report(self, client: httpx.Client, run: RunOrder) -> RunReport:
        now = datetime.now(UTC)
        state, ended = ReplicaState.RUNNING, None
        if run.job_id != CHATTY:
            chunk = LogChunk(start=0, lines=(), end=LogEnd(count=0, sha256=LogDigest().hexdigest()))
            ship(client, run, chunk)
            state = ReplicaState.EXITED
            ended = ExitReport(code=0, reason=Reason.COMPLETED, message="", finished_at=now)
        replica = ReplicaReport(task=TASK, state=state, address="127.0.0.1:2222", started_at=now, exit=ended)
        return RunReport(run_id=run.run_id, replicas=(replica,))


class LogWriter:
    """Prints lines at a fixed rate as the replica of the chatty job. Each line ends with its time (time.monotonic)."""

    def __init__(self, address: ServerProcess, run: RunOrder, lines_per_s: int) -> None:
        self._address = address
        self._run = run
        self._rate = lines_per_s
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._extra: list[str] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._print_forever, daemon=True)
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(timeout=60)

    def print_line(self, text: str) -> None:
        """Print this text as one of the next lines."""
        with self._lock:
            self._extra.append(text)

    def check(self) -> None:
        """Raise BenchmarkError if printing failed."""
        if self._error is not None:
            raise BenchmarkError("The chatty job could not print.") from self._error

    def _print_forever(self) -> None:
        began = time.monotonic()
        try:
            with self._address.client(self._address.agent) as client:
                while not self._stopped.is_set():
                    now = time.monotonic()
                    due = int((now - began) * self._rate) - self.sent
                    if due > 0:
                        self._print(client, min(due, 1000))
                    self._stopped.wait(max(0.0, CHUNK_S - (time.monotonic() - now)))
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._error = error

    def _print(self, client: httpx.Client, count: int) -> None:
        with self._lock:
            extra, self._extra = self._extra, []
        timestamp, now = rfc3339(datetime.now(UTC)), time.monotonic()
        texts = [
            f"epoch 3 step {self.sent + n} loss 0.{self.sent + n:06d} lr 0.001 examples/s 4711 @{now:.6f}"
            for n in range(count)
        ] + extra
        lines = tuple(LogLine(time=timestamp, stream="stdout", text=text) for text in texts)
        receipt = ship(client, self._run, LogChunk(start=self.sent, lines=lines))
        self.sent += len(lines)
        if receipt["next"] != self.sent:
            raise BenchmarkError(f"The server expects line {receipt['next']}, but {self.sent} were sent.")


def ship(client: httpx.Client, run: RunOrder, chunk: LogChunk) -> dict[str, Any]:
    path = f"/agent/v1/runs/{run.run_id}/replicas/{TASK}/logs"
    receipt: dict[str, Any] = client.post(path, content=chunk.model_dump_json()).raise_for_status().json()
    return receipt


def submit(client: httpx.Client, job_id: str) -> float:
    """Submit a job; returns the time (time.monotonic) of the request."""
    training_input = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "trainer.task"}
    began = time.monotonic()
    body = {"jobId": job_id, "trainingInput": training_input}
    client.post(f"/v1/projects/{PROJECT}/jobs", json=body).raise_for_status()
    return began
