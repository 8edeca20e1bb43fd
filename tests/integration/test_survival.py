"""Server with an unusable disk or database: its answers meanwhile, and its recovery."""

import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from sqlalchemy import event

from beds.mounts import SmallDisk, small_disk
from integration.api.api_support import ADMIN, AGENT, Clock, ScriptedAgent, Server, running_agent, server, serving
from trainyard_protocol.answers.health import Check, CheckStatus
from trainyard_server.background import tick_forever
from trainyard_server.control.leader_election import LeaderElection
from trainyard_server.main import main
from trainyard_server.services.health.health import Heartbeat, Probe
from trainyard_server.storage.db.base import engine, probes

PATIENT = 60


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture
def api(disk: SmallDisk, clock: Clock) -> Iterator[Server]:
    with server(disk.path / "data", clock, disk_reserve=0) as running:
        yield running


def upload(api: Server, content: bytes = b"x") -> httpx.Response:
    path = "/upload/trainyard/v1/projects/p/packages/a.tar.gz"
    return api.client.post(path, content=content, headers=ADMIN)


def assert_unavailable(answer: httpx.Response, *words: str) -> None:
    assert answer.status_code == 503, answer.text
    assert int(answer.headers["retry-after"]) > 0
    error = answer.json()["error"]
    assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
    for word in words:
        assert word in error["message"]
    assert "/" not in error["message"]
    assert "sqlite3" not in error["message"]


def health(api: Server) -> tuple[int, dict[str, Any]]:
    """Asked anew: what was answered a moment ago does not count."""
    checks = api.use_cases.health
    for probe in (checks._database, checks._disk, checks._agents):
        probe._fresh_s = 0
    answer = api.client.get("/healthz")
    return answer.status_code, answer.json()


def let_go(api: Server) -> None:
    """No connection of the pools is open, so that the disk can be made read-only."""
    api.use_cases.backend.store.close()
    api.use_cases.health.close()


@pytest.mark.parametrize("how", ["full", "read-only"])
def test_server_that_starts_on_a_disk_that_takes_nothing_says_so_in_one_line(
    disk: SmallDisk, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    (disk.path / "data").mkdir()
    disk.fill() if how == "full" else disk.forbid_writes()
    try:
        assert main(["--data-dir", str(disk.path / "data"), "--port", "0"]) == 1
    finally:
        disk.allow_writes()
    message = capsys.readouterr().err
    assert message.startswith(f"trainyard_server: cannot use the data directory {disk.path / 'data'}: ")
    assert ("full" in message or "No space left" in message) if how == "full" else "Read-only" in message
    assert message.count("\n") == 1


def test_full_disk_refuses_and_all_goes_on_once_there_is_room(api: Server, disk: SmallDisk) -> None:
    agent = running_agent(api, "before")
    disk.fill()

    assert_unavailable(api.submit(), "disk", "full")
    assert_unavailable(api.client.post("/v1/projects/p/jobs/before:cancel", headers=ADMIN), "full")
    request = {"start": 0, "blocks": [{"time": "2026-11-20T12:00:00Z", "stream": "stdout", "texts": ["x" * 9999]}]}
    logs = f"/agent/v1/runs/{agent.run.run_id}/replicas/master-replica-0/logs"
    assert_unavailable(api.client.post(logs, json=request, headers=AGENT), "full")
    assert_unavailable(upload(api, b"x" * 9999), "full")
    code, answer = health(api)
    assert (code, answer["status"], answer["checks"]["disk"]["status"]) == (503, "down", "down")
    assert api.job("before")["state"] == "RUNNING"  # what is known can still be read

    disk.free()

    api.create()
    assert api.submit().status_code == 409  # what failed had left nothing, and this is there
    assert api.client.post(logs, json=request, headers=AGENT).json()["next"] == 1
    agent.end_log()
    agent.exit(logs=False)
    api.tick()
    assert api.job("before")["state"] == "SUCCEEDED"
    assert health(api)[0] == 200


def test_read_only_disk_refuses_and_all_goes_on_once_it_can_be_written(api: Server, disk: SmallDisk) -> None:
    let_go(api)
    disk.forbid_writes()

    assert_unavailable(api.submit(), "the database")
    assert_unavailable(upload(api), "the data directory cannot be written")
    code, answer = health(api)
    assert (code, answer["checks"]["disk"]["status"]) == (503, "down")
    assert answer["checks"]["disk"]["message"] == "the data directory cannot be written"

    let_go(api)
    disk.allow_writes()

    api.create()
    assert health(api)[0] == 200


def test_database_that_another_process_locks_is_waited_for_and_then_refused(
    api: Server, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_BUSY_MS", 50)
    monkeypatch.setattr(probes, "PATIENCE_S", 0.05)
    api.use_cases.health._probe = probes.DatabaseProbe(api.use_cases.backend.store.url)
    api.use_cases.backend.store.close()  # connections of the new patience
    api.create("before")
    other = sqlite3.connect(disk.path / "data" / "trainyard.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    assert_unavailable(api.submit(), "locked by another process")
    code, answer = health(api)
    assert (code, answer["checks"]["database"]["message"]) == (503, "the database is locked by another process")
    assert api.job("before")["state"] == "QUEUED"

    other.execute("ROLLBACK")
    other.close()

    api.create()
    assert health(api)[0] == 200


def test_damaged_database_says_everywhere_that_it_does_not_pass_and_what_to_do(
    api: Server, disk: SmallDisk, capsys: pytest.CaptureFixture[str]
) -> None:
    remedy = "cannot repair this: stop it, and restore the database"
    for number in range(30):
        api.create(f"job{number}")
    api.use_cases.backend.store.close()
    with sqlite3.connect(disk.path / "data" / "trainyard.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    path = disk.path / "data" / "trainyard.db"
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))

    answer = api.client.get("/v1/projects/p/jobs", headers=ADMIN)

    assert answer.status_code == 500, "what passes is 503, and is tried again"
    assert f"the database is damaged. The server {remedy}" in answer.json()["error"]["message"]
    code, seen = health(api)
    assert (code, seen["checks"]["database"]["status"]) == (503, "down")
    assert seen["checks"]["database"]["message"] == "the database is damaged"
    assert remedy in seen["checks"]["database"]["advice"]
    findings = api.get("/trainyard/v1/health", deep="true")["findings"]
    damage = [one for one in findings if one["check"] == "database" and one["status"] == "problem"]
    assert damage, findings
    assert all(remedy in one["advice"] for one in damage)

    api.use_cases.backend.store.close()
    path.write_bytes(b"this is no database at all" * 1000)
    assert main(["--data-dir", str(disk.path / "data"), "--port", "0"]) == 1
    message = capsys.readouterr().err
    assert "file is not a database. The server cannot repair this" in message
    assert message.count("\n") == 1


def test_damage_that_one_statement_meets_is_down_until_the_next_start(api: Server, disk: SmallDisk) -> None:
    """The probe of a health check reads little of the database."""
    api.create()
    assert health(api)[1]["checks"]["database"]["status"] == "ok"
    met = sqlite3.DatabaseError("database disk image is malformed")

    def fail(*_: object) -> None:
        raise met

    jobs = api.use_cases.backend.store._engine
    event.listen(jobs, "do_execute", fail)
    assert api.client.get("/v1/projects/p/jobs", headers=ADMIN).status_code == 500
    event.remove(jobs, "do_execute", fail)
    assert api.client.get("/v1/projects/p/jobs", headers=ADMIN).status_code == 200
    code, seen = health(api)
    assert (code, seen["checks"]["database"]["message"]) == (503, "the database is damaged")


def test_below_the_reserve_nothing_new_is_taken_and_jobs_go_on(disk: SmallDisk, clock: Clock) -> None:
    with server(disk.path / "data", clock, disk_reserve=0) as api:
        api.create("before")
    with server(disk.path / "data", clock, disk_reserve=2**40) as api:
        agent = ScriptedAgent(api)
        agent.sync()

        assert_unavailable(api.submit(), "accepts nothing new", "Free some space")
        assert_unavailable(upload(api), "accepts nothing new")
        api.create(params={"validateOnly": "true"})

        agent.start()
        agent.exit()
        assert api.job("before")["state"] == "SUCCEEDED"
        code, answer = health(api)
        assert (code, answer["status"], answer["checks"]["disk"]["status"]) == (200, "degraded", "degraded")


async def test_ticks_that_fail_say_so_once_and_go_on(
    api: Server, disk: SmallDisk, caplog: pytest.LogCaptureFixture
) -> None:
    api.create()
    ScriptedAgent(api).sync()
    controller, notifier = api.use_cases.controller, api.use_cases.backend.notifier
    leadership = LeaderElection(api.use_cases.backend.store, time.monotonic, 15.0)
    tried = 0

    class Counting:
        def tick(self) -> None:
            nonlocal tried
            tried += 1
            if tried == 1:
                disk.fill()
                api.clock.advance(8 * 86400)  # so that there is a step to take: maxRunningTime is over
            elif tried == 10:
                disk.free()
            elif tried == 12:
                notifier.close()
            controller.tick()

    with caplog.at_level(logging.INFO):
        cases = api.use_cases
        backend = SimpleNamespace(
            notifier=notifier, settings=SimpleNamespace(tick_s=0.01), observations=cases.backend.observations
        )
        loop = SimpleNamespace(backend=backend, controller=Counting(), health=cases.health, audit=cases.audit)
        await tick_forever(loop, leadership)  # type: ignore[arg-type]

    records = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [record.exc_info for record in records if record.exc_info] == []
    assert len(records) <= 4, caplog.text
    assert "full" in records[0].getMessage()
    assert api.job()["state"] != "RUNNING"


def test_heartbeat_says_how_long_nothing_moved_and_why() -> None:
    now = 0.0
    heartbeat = Heartbeat(lambda: now)
    assert heartbeat.check(1.0).status is CheckStatus.OK
    heartbeat.failed(OSError(28, "No space left on device"))
    now = 5
    assert heartbeat.check(1.0).status is CheckStatus.DEGRADED
    now = 62
    check = heartbeat.check(1.0)
    assert check.status is CheckStatus.DOWN
    assert check.message == "no tick succeeded for 62 s: the disk of the data directory is full"
    heartbeat.succeeded()
    assert heartbeat.check(1.0).status is CheckStatus.OK
    now = 80
    assert heartbeat.check(1.0).status is CheckStatus.DEGRADED  # it hangs: nothing has failed


async def test_probe_that_hangs_is_down_and_is_asked_by_one_thread() -> None:
    asked, go_on = 0, threading.Event()

    def ask() -> Check:
        nonlocal asked
        asked += 1
        assert go_on.wait(PATIENT)
        return Check(status=CheckStatus.OK, message="answers")

    probe = Probe("database", ask, patience_s=0.01, fresh_s=0.0)
    answers = [await probe.check() for _ in range(20)]
    assert {answer.status for answer in answers} == {CheckStatus.DOWN}
    assert asked == 1
    go_on.set()
    deadline = time.monotonic() + PATIENT
    while (await probe.check()).status is not CheckStatus.OK:
        assert time.monotonic() < deadline


def test_log_stream_that_meets_a_locked_out_disk_ends_without_its_end(
    api: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = running_agent(api)
    agent.log("one")
    kinds: list[str] = []

    def read(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with serving(api.app) as url, httpx.Client(base_url=url, timeout=PATIENT, headers=ADMIN) as client:
        path = "/trainyard/v1/projects/p/jobs/job/logs?follow=true"
        with client.stream("GET", path) as stream:
            for line in stream.iter_lines():
                if line.startswith("event: "):
                    kinds.append(line.removeprefix("event: "))
                if line.startswith("data: ") and '"one"' in line:
                    monkeypatch.setattr(type(api.use_cases.backend.logs), "read", read)
                    agent.log("two")
        monkeypatch.undo()
        assert set(kinds) == {"job", "log"}
        records = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert [record.exc_info for record in records if record.exc_info] == []
        with client.stream("GET", "/trainyard/v1/projects/p/jobs/job/logs") as stream:
            assert re.search('"text":"two"', stream.read().decode())
