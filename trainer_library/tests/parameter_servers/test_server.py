"""The parameter server's process: when it listens, reports and ends."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from support.addresses import free_addresses
from support.lazy import messages, server_module
from support.local_servers import PATIENCE, SGD, Servers, make, vector


def test_serve_where_the_port_is_taken_reports_it(servers: Servers) -> None:
    servers.start(1)
    with pytest.raises(messages.ParameterServerError, match=f"cannot listen at {servers.addresses[0]}"):
        server_module.serve(servers.addresses[0], make, stopped=threading.Event())


def test_serve_listens_beyond_loopback_only_for_another_address(servers: Servers) -> None:
    (loopback,) = free_addresses(1)
    port = loopback.rpartition(":")[2]
    servers.running.append(server_module.serve(f"elsewhere:{port}", make, stopped=threading.Event()))
    servers.addresses = [f"127.0.0.2:{port}"]
    servers.client().wait_until_ready(PATIENCE)
    (address,) = free_addresses(1)
    servers.running.append(server_module.serve(address, make, stopped=threading.Event()))
    servers.addresses = [f"127.0.0.2:{address.rpartition(':')[2]}"]
    with pytest.raises(messages.ParameterServerError, match="did not respond"):
        servers.client(retry_for=0).pull()


class Task:
    """run_server in the main thread, with a function that uses a client in another thread."""

    def __init__(self, servers: Servers) -> None:
        servers.addresses = free_addresses(1)
        self._address = servers.addresses[0]
        self.client = servers.client("chief")
        self.worker = servers.client("worker", retry_for=0)
        self.reports: list[dict[str, float]] = []
        self.reported = threading.Event()

    def run(self, beside: Callable[[], None], grace: float = PATIENCE) -> None:
        before = signal.getsignal(signal.SIGTERM)
        try:
            with ThreadPoolExecutor(1) as pool:
                done: Future[None] = pool.submit(beside)
                server_module.run_server(self._address, make, 0, 1, grace, report=self._report, every=2)
                done.result(PATIENCE)
        finally:
            signal.signal(signal.SIGTERM, before)

    def initialize(self, version: int = 0) -> None:
        self.client.wait_until_ready(PATIENCE)
        self.client.initialize(vector(0), None, version, SGD)

    def _report(self, **fields: float) -> None:
        self.reports.append(fields)
        self.reported.set()


def test_run_server_serves_and_reports_every_so_many_updates_until_training_is_over(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    task = Task(servers)

    def train() -> None:
        task.initialize(version=40)
        first = task.client.pull()
        for number in range(5):
            task.client.push(vector(1), first)
            assert number != 1 or task.reported.wait(PATIENCE)
        task.client.finish()

    task.run(train)
    assert "ended without leaving" not in caplog.text
    assert task.reports[0] == {"step": 42, "staleness_mean": 0.5, "staleness_max": 1}
    assert (task.reports[-1]["step"], task.reports[-1]["staleness_max"]) == (45, 4)
    assert "ps 0 of 1 listens at 127.0.0.1:" in caplog.text
    assert "Initialized: 11 elements, version 40." in caplog.text
    assert "ps 0 applied 5 updates; staleness: mean 2.00, max 4." in caplog.text


def test_run_server_after_sigterm_serves_until_the_chief_has_saved(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(servers)
    saved = []

    def save() -> None:
        task.initialize(version=3)
        os.kill(os.getpid(), signal.SIGTERM)
        saved.append(task.client.snapshot())
        task.client.finish()

    task.run(save)
    assert saved[0].version == 3
    assert "before the chief finished" not in caplog.text
    assert task.reports == []


def test_run_server_without_a_chief_or_for_a_worker_that_was_killed_ends_by_itself(
    servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(servers)

    def terminate() -> None:
        task.client.wait_until_ready(PATIENCE)
        os.kill(os.getpid(), signal.SIGTERM)

    task.run(terminate, grace=0)
    assert "ps 0 stopped by SIGTERM before the chief finished training." in caplog.text
    task = Task(servers)

    def train() -> None:
        task.initialize()
        task.worker.push(vector(1), task.worker.pull())
        task.client.finish()

    task.run(train, grace=0)
    assert "ps 0: workers that ended without leaving: 1." in caplog.text


def test_run_server_serves_workers_until_they_have_left(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    task = Task(servers)
    happened = []
    stop = server_module.ParameterServer.stop

    def remember_and_stop(server: server_module.ParameterServer, *args: float) -> None:
        happened.append("stop")
        stop(server, *args)

    monkeypatch.setattr(server_module.ParameterServer, "stop", remember_and_stop)
    monkeypatch.setattr("trainyard_trainer.parameter_servers.server.POLL", 0.001)

    def train() -> None:
        task.initialize()
        task.worker.push(vector(1), task.worker.pull())
        pulled = task.worker.pull()
        task.client.push(vector(1), task.client.pull())
        task.client.finish()
        for _ in range(5):
            task.worker.push(vector(1), pulled)
            pulled = task.worker.pull()
        happened.append("leave")
        task.worker.leave()

    task.run(train)
    assert happened == ["leave", "stop"]
    assert task.reports[-1]["step"] == 7
    assert "ended without leaving" not in caplog.text


@pytest.mark.parametrize("first", ["finish", "SIGTERM"])
def test_run_server_after_finish_and_sigterm_does_not_wait_for_workers(
    servers: Servers, caplog: pytest.LogCaptureFixture, first: str
) -> None:
    task = Task(servers)

    def end() -> None:
        task.initialize()
        task.worker.push(vector(1), task.worker.pull())
        if first == "finish":
            task.client.finish()
        os.kill(os.getpid(), signal.SIGTERM)
        if first == "SIGTERM":
            task.client.finish()

    task.run(end)
    assert "ended without leaving" not in caplog.text
    assert "before the chief finished" not in caplog.text
