"""A real server process, and an agent whose replicas are scripted: one prints without end, the others end at once."""

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
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.sync import (
    AgentInfo,
    Capacity,
    ExitReport,
    LogChunk,
    LogDigest,
    LogEnd,
    LogLine,
    ReplicaReport,
    RunOrder,
    RunReport,
    SyncRequest,
    SyncResponse,
)

PROJECT, CHATTY, TASK = "p", "chatty", "master-replica-0"
CHUNK_S = 0.05
START_S = 60.0

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
    """What was to be measured did not happen."""


@dataclass(frozen=True)
class Address:
    """Of a server, the id of its process, and the tokens that it takes."""

    url: str
    pid: int
    admin: str = field(repr=False)
    agent: str = field(repr=False)

    def cpu_s(self) -> float:
        """What the server has used so far."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def client(self, token: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, headers={"Authorization": f"Bearer {token}"})


@contextmanager
def serving(directory: Path) -> Iterator[Address]:
    """A server in a process of its own, with an empty data directory."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tokens = {role: secrets.token_hex() for role in ("admin", "agent")}
    arguments = ["--data-dir", str(directory / "data"), "--port", str(port), "--log-level", "warning"]
    for role, token in tokens.items():
        (directory / role).write_text(token, encoding="utf-8")
        arguments += ["--token-file", f"{role}={directory / role}"]
    with subprocess.Popen([sys.executable, "-m", "trainyard_server", *arguments]) as process:
        try:
            address = Address(f"http://127.0.0.1:{port}", process.pid, tokens["admin"], tokens["agent"])
            _wait_for(process, address)
            yield address
        finally:
            process.terminate()


def _wait_for(process: "subprocess.Popen[bytes]", address: Address) -> None:
    deadline = time.monotonic() + START_S
    with httpx.Client() as client:
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError):
                if client.get(f"{address.url}/healthz").status_code == 200:
                    return
            time.sleep(0.05)
    raise BenchmarkError("The server does not answer.")


class ScriptedAgent:
    """Takes every run at once. The replica of the job `chatty` stays and prints; any other ends once it is placed.

    `placed` has the moment (time.monotonic) at which the agent was told of each job's run.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._over = threading.Event()
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._sync_forever, daemon=True)
        self._error: BaseException | None = None
        self.placed: dict[str, tuple[float, RunOrder]] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=60)

    def wait(self, job_id: str, timeout_s: float = 60) -> tuple[float, RunOrder]:
        """When the job was placed, and its run. Raises BenchmarkError."""
        with self._news:
            if not self._news.wait_for(lambda: job_id in self.placed or self._error, timeout_s):
                raise BenchmarkError(f"The job {job_id} was not placed within {timeout_s:g} s.")
            if self._error is not None:
                raise BenchmarkError("The scripted agent failed.") from self._error
            return self.placed[job_id]

    def _sync_forever(self) -> None:
        try:
            with self._address.client(self._address.agent) as client:
                seen = ""
                reports: tuple[RunReport, ...] = ()
                while not self._over.is_set():
                    request = SyncRequest(agent=_INFO, runs=reports, wait_s=2, seen=seen)
                    response = client.post("/agent/v1/sync", content=request.model_dump_json())
                    at = time.monotonic()
                    answer = SyncResponse.model_validate_json(response.raise_for_status().content)
                    with self._news:
                        for order in answer.runs:
                            self.placed.setdefault(order.job_id, (at, order))
                        self._news.notify_all()
                    seen, reports = answer.version, tuple(self._report(client, run) for run in answer.runs)
        except BaseException as error:  # noqa: BLE001 - whoever waits for this agent is told
            with self._news:
                self._error = error
                self._news.notify_all()

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


class Chatter:
    """Prints so many lines a second as the replica of the chatty job, until it is told to stop. Each line ends with
    the moment (time.monotonic) at which it was printed."""

    def __init__(self, address: Address, run: RunOrder, lines_per_s: int) -> None:
        self._address = address
        self._run = run
        self._rate = lines_per_s
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._marks: list[str] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._print_forever, daemon=True)
        self.sent = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(timeout=60)

    def mark(self, text: str) -> None:
        """One of the next lines is this text."""
        with self._lock:
            self._marks.append(text)

    def check(self) -> None:
        """Raises BenchmarkError if it could not print."""
        if self._error is not None:
            raise BenchmarkError("The chatty job could not print.") from self._error

    def _print_forever(self) -> None:
        began = time.monotonic()
        try:
            with self._address.client(self._address.agent) as client:
                while not self._over.is_set():
                    now = time.monotonic()
                    due = int((now - began) * self._rate) - self.sent
                    if due > 0:
                        self._print(client, min(due, 1000))
                    self._over.wait(max(0.0, CHUNK_S - (time.monotonic() - now)))
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._error = error

    def _print(self, client: httpx.Client, count: int) -> None:
        with self._lock:
            marks, self._marks = self._marks, []
        time_of_day, moment = rfc3339(datetime.now(UTC)), time.monotonic()
        texts = [
            f"epoch 3 step {self.sent + n} loss 0.{self.sent + n:06d} lr 0.001 examples/s 4711 @{moment:.6f}"
            for n in range(count)
        ] + marks
        lines = tuple(LogLine(time=time_of_day, stream="stdout", text=text) for text in texts)
        receipt = ship(client, self._run, LogChunk(start=self.sent, lines=lines))
        self.sent += len(lines)
        if receipt["next"] != self.sent:
            raise BenchmarkError(f"The server wants line {receipt['next']}, and {self.sent} were sent.")


def ship(client: httpx.Client, run: RunOrder, chunk: LogChunk) -> dict[str, Any]:
    path = f"/agent/v1/runs/{run.run_id}/replicas/{TASK}/logs"
    answer: dict[str, Any] = client.post(path, content=chunk.model_dump_json()).raise_for_status().json()
    return answer


def submit(client: httpx.Client, job_id: str) -> float:
    """When (time.monotonic) the job was sent."""
    training_input = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "trainer.task"}
    began = time.monotonic()
    body = {"jobId": job_id, "trainingInput": training_input}
    client.post(f"/v1/projects/{PROJECT}/jobs", json=body).raise_for_status()
    return began
