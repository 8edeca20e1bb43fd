"""`trainyard doctor`: what it sees on this machine, what it makes of the server's words, and how it reads."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import trainyard_protocol
from beds.run_ids import unique_run
from integration.api.api_support import Clock, ScriptedAgent, Server, server, serving
from trainyard_agent.host import process_tags
from trainyard_cli.capabilities.health import checks as local_checks
from trainyard_cli.capabilities.health import doctor
from trainyard_cli.commands import tree
from trainyard_cli.local.options import Options, ProcessName
from trainyard_cli.local.service import down
from trainyard_cli.local.state import PROCESSES, LocalState
from trainyard_cli.main import run
from trainyard_cli.output import findings
from trainyard_protocol.answers.cluster import AgentView
from trainyard_protocol.answers.health import Check, CheckStatus, Finding, ServerHealth

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
Begin = Callable[[ProcessName], "subprocess.Popen[bytes]"]
NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.fixture
def state(tmp_path: Path) -> LocalState:
    state = LocalState(tmp_path / "state")
    state.create()
    state.save(Options(server_port=1, storage_port=2))
    return state


@pytest.fixture
def begin(state: LocalState) -> Iterator[Begin]:
    """Starts what stands for a part of the service."""
    started = []

    def begin_(name: ProcessName) -> subprocess.Popen[bytes]:
        started.append(state.start(name, SLEEP, os.environ))
        return started[-1]

    yield begin_
    for process in started:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def problems(findings: Iterator[Finding]) -> list[str]:
    return [finding.found for finding in findings if finding.status == "problem"]


def problem(**given: Any) -> Finding:
    return Finding.model_validate({"check": "runs", "status": "problem", "found": "It hangs.", **given})


def test_service_never_started_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("TRAINYARD_SERVER", raising=False)
    assert run(tree.trainyard, "trainyard", ["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "was never started" in printed
    assert printed.endswith("\nNo problems.\n")
    assert not (tmp_path / "state").exists()


def test_part_of_the_service_that_was_killed_has_the_command_that_starts_it(state: LocalState, begin: Begin) -> None:
    started = {name: begin(name) for name in PROCESSES}
    assert [one.found for one in local_checks.services(state)] == ["Server, storage and agent are running."]
    kill(started["agent"])
    (found,) = local_checks.services(state)
    assert found.found == f"The agent exited unexpectedly: process {started['agent'].pid} is gone."
    assert found.command == f"trainyard up --state-dir {state.root}"
    state.stop("agent")
    assert problems(local_checks.services(state)) == ["The agent is not running."]


def test_records_of_a_service_that_died_are_a_problem_until_it_is_stopped(state: LocalState, begin: Begin) -> None:
    kill(begin("agent"))
    (state.root / "run" / "server.json").write_text("damaged")
    assert [one.partition(":")[0] for one in problems(local_checks.services(state))] == [
        "The server exited unexpectedly",
        "The agent exited unexpectedly",
    ]
    assert not down(state, print)
    assert problems(local_checks.services(state)) == []


def test_database_of_a_stopped_service_is_examined(state: LocalState, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["doctor", "--state-dir", str(state.root)]
    (state.root / "server").mkdir(mode=0o700)
    (state.root / "server" / "trainyard.db").write_bytes(b"garbage " * 1000)
    assert run(tree.trainyard, "trainyard", words) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert "the database is damaged (file is not a database). The server does not start on it" in printed
    assert "(docs/how-to/operate.md, A damaged database). Then: trainyard up." in printed
    assert printed.endswith(" 1 problem.")


def test_state_that_cannot_be_written_is_a_problem(state: LocalState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)  # what a read-only file system answers, also to root
    found = local_checks.disk(state)
    assert (found.status, found.found) == ("problem", f"{state.root} cannot be written.")


def test_port_of_another_program_is_a_problem_only_while_the_service_runs(state: LocalState, begin: Begin) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        state.save(Options(server_port=port))
        (found,) = local_checks.ports(state)
        assert found.status == "ok"
        assert "The next `trainyard up` uses another port." in found.found
        begin("agent")
        (found,) = local_checks.ports(state)
        assert found.status == "problem"
        assert f"Port {port}, last used by the server, is in use by process {os.getpid()}" in found.found
        where = f"--state-dir {state.root}"
        assert found.command == f"trainyard down {where} && trainyard up {where}"


def test_disk_lists_the_largest_parts(state: LocalState, monkeypatch: pytest.MonkeyPatch) -> None:
    (state.root / "server" / "logs").mkdir(parents=True)
    (state.root / "server" / "logs" / "big").write_bytes(b"x" * 2**20)
    found = local_checks.disk(state)
    assert found.status == "ok"
    assert "server/logs 1.1 MB" in found.found
    monkeypatch.setattr(local_checks, "LOW_BYTES", 2**60)
    found = local_checks.disk(state)
    assert (found.status, bool(found.advice)) == ("problem", True)


def test_findings_of_the_agent_are_passed_on(state: LocalState) -> None:
    run_id = unique_run("a")
    (state.root / "agent").mkdir()
    environment = {**os.environ, **process_tags.tag(run_id, "master-replica-0", state.root / "agent")}
    with subprocess.Popen(["sleep", "1000"], env=environment) as orphan:
        while not process_tags.tagged(run_id):
            time.sleep(0.001)
        assert f"kill -KILL {orphan.pid}" in [one.command for one in local_checks.agent(state)]
        orphan.kill()


def test_agent_that_cannot_check_is_reported(state: LocalState, monkeypatch: pytest.MonkeyPatch) -> None:
    (state.root / "agent").mkdir()
    fails = [sys.executable, "-c", "import sys; sys.exit('no module of that name')"]
    monkeypatch.setattr(local_checks, "_agent_command", lambda *_: fails)
    (found,) = local_checks.agent(state)
    assert (found.status, "no module of that name" in found.found) == ("unknown", True)


def test_version_and_checks_that_are_not_ok_are_problems() -> None:
    checks = {
        "database": Check(status=CheckStatus.DOWN, message="does not answer"),
        "disk": Check(status=CheckStatus.OK, message="1 GB"),
        "new": Check(status=CheckStatus.DEGRADED, message="from the future"),
    }
    health = ServerHealth(status=CheckStatus.DOWN, checks=checks, version="0.0.1", time=NOON)
    assert problems(doctor.of_checks(health)) == [
        "The server reports: database: does not answer.",
        "The server reports: new: from the future.",
    ]
    old = doctor.of_version("server", "The server", health.version)
    assert (old.status, old.found.startswith("The server has version 0.0.1, this command ")) == ("problem", True)


def test_agents_of_another_version_are_a_problem_unless_they_are_silent() -> None:
    def agent(name: str, version: str, alive: bool = True) -> AgentView:
        given = {"agent_id": name, "name": name, "version": version, "alive": alive, "last_seen": NOON}
        of_all = {"runtime": "process", "capacity_mode": "fit", "capacity": {"cpus": (0,), "memory_bytes": 1}}
        return AgentView.model_validate(given | of_all)

    mine = trainyard_protocol.__version__
    found = list(doctor.of_agents([agent("same", mine), agent("old", "1"), agent("gone", "1", alive=False)]))
    assert [one.status for one in found] == ["ok", "problem"]
    assert found[1].found == f"The agent old has version 1, this command {mine}."


def test_text_has_meaning_and_advice_within_the_width_and_commands_on_a_line_each() -> None:
    command = f"docker rm --force --volumes {'0' * 64}"
    shown = [
        Finding(check="database", status="ok", found="It answers."),
        problem(meaning="Nothing goes on. " * 4, advice="Restart it.", command=command),
        problem(),
    ]
    assert (
        findings.text(shown, 60)
        == f"""\
database  ok       It answers.
runs      PROBLEM  It hangs.
                   Nothing goes on. Nothing goes on. Nothing
                   goes on. Nothing goes on.
                   -> Restart it.
                   -> {command}
runs      PROBLEM  It hangs.

2 problems."""
    )
    unknown = findings.text([Finding(check="a", status="unknown", found="b")], 60)
    assert unknown.endswith("No problems were found. Not checked: 1 item, above.")


def test_doctor_checks_a_remote_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def typed(*words: str) -> tuple[int, str]:
        code = run(tree.trainyard, "trainyard", ["doctor", *words])
        return code, capsys.readouterr().out

    monkeypatch.setenv("TRAINYARD_TOKEN", "admin-secret")
    clock = Clock()
    clock.now = datetime.now(UTC)
    with server(tmp_path / "data", clock) as app, serving(app.app) as url:
        monkeypatch.setenv("TRAINYARD_SERVER", url)
        code, printed = typed()
        assert code == 3
        assert "The server reports: agents: none is connected, so jobs wait." in " ".join(printed.split())
        ScriptedAgent(app).sync()
        clock.now = datetime.now(UTC)
        code, printed = typed("-o", "json")
        assert (code, json.loads(printed)["healthy"]) == (0, True), printed
    code, printed = typed()
    assert code == 3
    assert "nothing accepts connections there" in " ".join(printed.split())


def test_status_shows_the_checks_of_a_server_without_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_TOKEN", "admin-secret")
    with server(tmp_path / "data", Clock()) as app, serving(app.app) as url:
        monkeypatch.setenv("TRAINYARD_SERVER", url)
        lose_database(app)
        assert run(tree.trainyard, "trainyard", ["status"]) == 3
        printed = capsys.readouterr().out
        assert "the file of the database cannot be opened" in printed
        assert "The server cannot do that now" in printed
        assert run(tree.trainyard, "trainyard", ["status", "-o", "json"]) == 3
        health = json.loads(capsys.readouterr().out)["health"]
        assert (health["status"], health["checks"]["database"]["status"]) == ("down", "down")
        assert run(tree.trainyard, "trainyard", ["doctor"]) == 3
        assert "put it back" in capsys.readouterr().out


def lose_database(app: Server) -> None:
    """No connection is left, and where the file was is a directory."""
    app.use_cases.backend.store.close()
    app.use_cases.health.close()
    data = app.use_cases.backend.settings.data_dir
    for path in data.glob("trainyard.db*"):
        path.unlink()
    (data / "trainyard.db").mkdir()
