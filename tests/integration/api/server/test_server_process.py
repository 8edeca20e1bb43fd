"""The server as a process of its own: it starts, ends when told, and survives being killed."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from beds import databases
from beds.token_files import long_token, write_token
from integration.api.api_support import GB, KEY, eventually, package_job
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.wire.agents import AGENT_KEY, AgentInfo
from trainyard_protocol.wire.sync import SyncRequest, SyncResponse

pytestmark = pytest.mark.e2e

CAPACITY = Capacity(cpus=(0, 1), memory_bytes=8 * GB)
KIND = {"version": "0", "runtime": "fake", "capacity_mode": "fit", "runs_images": False}
INFO = AgentInfo.model_validate({"agent_id": "a", "name": "laptop", "capacity": CAPACITY, **KIND})
PROXY = "train.example.com"
ADMIN = {"Authorization": f"Bearer {long_token('admin')}"}
AGENT = {"Authorization": f"Bearer {long_token('agent')}", AGENT_KEY: KEY.secret}


class Process:
    """`python -m trainyard_server` on a data directory and a port that stay the same."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        for role in ("admin", "agent"):
            write_token(directory / role, long_token(role))
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=30)
        self.other_address = f"http://[::1]:{self._port}"

    def start(self) -> None:
        arguments = ["--data-dir", str(self._directory / "data"), "--port", str(self._port)]
        arguments += ["--allowed-host", PROXY]
        if database := databases.current.url(self._directory):
            arguments += ["--database", database]
        for role in ("admin", "agent"):
            arguments += ["--token-file", f"{role}={self._directory / role}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainyard_server", *arguments], stderr=subprocess.PIPE, text=True
        )
        eventually(self._answers, timeout_s=60)

    def end(self, how: signal.Signals) -> tuple[int, str]:
        self.process.send_signal(how)
        _, log = self.process.communicate(timeout=60)
        return self.process.returncode, log

    def sync(self, wait_s: float = 0, seen: str = "") -> SyncResponse:
        request = SyncRequest(agent=INFO, runs=(), wait_s=wait_s, seen=seen)
        answer = self.client.post("/agent/v1/sync", content=request.model_dump_json(), headers=AGENT)
        return SyncResponse.model_validate_json(answer.raise_for_status().content)

    def _answers(self) -> bool:
        assert self.process.poll() is None, "it ended"
        try:
            return self.client.get("/healthz").status_code == 200
        except httpx.ConnectError:
            return False


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    process.start()
    yield process
    process.client.close()
    if process.process.poll() is None:
        process.end(signal.SIGKILL)


@contextmanager
def waiting(process: Process) -> Iterator[None]:
    """A log stream and a long poll that are open; both end by themselves, not by an error."""
    seen = process.sync().version
    errors: list[Exception] = []

    def follow() -> None:
        try:
            with httpx.Client(base_url=process.client.base_url, timeout=30) as client:
                path = "/trainyard/v1/projects/p/jobs/a/logs?follow=true"
                with client.stream("GET", path, headers=ADMIN) as stream:
                    for _ in stream.iter_lines():
                        connected.set()
        except httpx.HTTPError as error:
            errors.append(error)

    connected = threading.Event()
    threads = [threading.Thread(target=follow), threading.Thread(target=process.sync, args=(1000, seen))]
    for thread in threads:
        thread.start()
    assert connected.wait(30)
    yield
    for thread in threads:
        thread.join()
    assert errors == []


def test_sigterm_ends_the_server_cleanly_while_others_wait(process: Process) -> None:
    process.sync()
    body = {"jobId": "a", "trainingInput": package_job()}
    process.client.post("/v1/projects/p/jobs", json=body, headers=ADMIN).raise_for_status()
    eventually(lambda: process.sync().runs)
    with waiting(process):
        code, log = process.end(signal.SIGTERM)
    assert code == 0
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_server_on_loopback_holds_its_data_and_all_that_localhost_means_and_believes_a_proxy_on_this_machine(
    process: Process, tmp_path: Path
) -> None:
    """Browsers keep the session's cookie for https alone behind a proxy with TLS."""
    assert httpx.get(f"{process.other_address}/healthz", timeout=30).status_code == 200
    command = [sys.executable, "-m", "trainyard_server", "--data-dir", str(tmp_path / "data"), "--port", "0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 1
    assert "another server is using the data directory" in second.stderr
    assert second.stderr.count("\n") == 1
    proxied = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7", "Host": PROXY}
    answer = process.client.post("/sign-in", data={"token": long_token("admin")}, headers=proxied)
    assert answer.status_code == 303
    assert answer.headers["set-cookie"].startswith("__Host-trainyard-443=")
    assert answer.headers["set-cookie"].endswith("; HttpOnly; SameSite=Lax; Secure")
    for number in range(11):
        wrong = {**proxied, "X-Forwarded-For": "192.0.2.8"}
        answer = process.client.post("/sign-in", data={"token": f"guess {number}"}, headers=wrong)
    assert answer.status_code == 429
    assert process.client.post("/sign-in", data={"token": long_token("admin")}, headers=proxied).status_code == 303
