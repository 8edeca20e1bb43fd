"""`python -m trainyard_agent --doctor`: what is left of runs is found and removed, and nothing else is touched."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver
from trainyard_agent.doctor import examine
from trainyard_agent.engines.docker.network import doctor as firewall
from trainyard_agent.engines.docker.network.firewall import Firewall
from trainyard_agent.host import process_tags
from trainyard_agent.host.files import try_lock, write_json
from trainyard_agent.main import main
from trainyard_protocol.views.health import Finding
from unit.agent.shells import RUN, TASK, start

OTHER = unique_run("2")

Start = Callable[[Path, str], subprocess.Popen[bytes]]


class NoRules(Firewall):
    """A machine without firewall rules. The real one may have those of a test beside this one."""

    def survey(self) -> tuple[set[str], set[str]]:
        return set(), set()


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setattr(firewall, "Firewall", NoRules)


@pytest.fixture
def left() -> Iterator[Start]:
    """`left(state_dir, run_id)`: a process that carries the mark of a replica there."""
    processes = []

    def start_(state_dir: Path, run_id: str) -> subprocess.Popen[bytes]:
        temporary = state_dir / "runs" / run_id / TASK / "tmp"
        environment = {**os.environ, "TMPDIR": str(temporary), **process_tags.tag(run_id, TASK)}
        process = subprocess.Popen(["sleep", "1000"], env=environment)
        processes.append(process)
        # execve closes Popen's pipe before /proc shows the environment.
        while not process_tags.tagged(run_id, TASK):
            time.sleep(0.001)
        return process

    yield start_
    for process in processes:
        process.kill()
        process.wait()


def of(findings: list[Finding], check: str) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def problems(findings: list[Finding]) -> list[str]:
    return [finding.check for finding in findings if finding.status == "problem"]


def test_nothing_left_is_nothing_wrong_and_makes_nothing(tmp_path: Path) -> None:
    findings = examine(tmp_path / "state", frozenset(), fix=True)
    assert {finding.status for finding in findings} == {"ok"}
    assert not (tmp_path / "state").exists()


def test_process_of_a_run_that_is_gone_is_found_and_killed(tmp_path: Path, left: Start) -> None:
    (tmp_path / "state").mkdir()
    process = left(tmp_path / "state", RUN)

    (found,) = of(examine(tmp_path / "state", frozenset(), fix=False), "processes")
    assert (found.status, found.fixable) == ("problem", True)
    assert f"The process {process.pid} (sleep 1000) is orphaned: its run {RUN[:12]}" in found.found
    assert process.poll() is None

    (fixed,) = of(examine(tmp_path / "state", frozenset(), fix=True), "processes")
    assert fixed.status == "fixed"
    assert process.wait(10) == -9
    assert problems(examine(tmp_path / "state", frozenset(), fix=False)) == []


def test_process_of_a_run_that_is_known_or_of_another_installation_is_let_be(
    tmp_path: Path, left: Start
) -> None:
    (tmp_path / "state" / "runs" / RUN / TASK).mkdir(parents=True)
    write_json(tmp_path / "state" / "runs" / RUN / "run.json", {"run_id": RUN})
    (tmp_path / "other").mkdir()
    mine, others = left(tmp_path / "state", RUN), left(tmp_path / "other", OTHER)

    assert problems(examine(tmp_path / "state", frozenset({RUN}), fix=True)) == []
    assert (mine.poll(), others.poll()) == (None, None)


def test_process_of_an_installation_that_is_gone_is_an_orphan(tmp_path: Path, left: Start) -> None:
    process = left(tmp_path / "gone", RUN)
    findings = of(examine(tmp_path / "state", frozenset(), fix=True), "processes")
    assert any(f.status == "fixed" and f" {process.pid} " in f.found for f in findings)
    assert process.wait(10) == -9


def test_supervisor_whose_directory_was_removed_goes_with_its_replica(
    driver: Driver, runs: Path, tmp_path: Path
) -> None:
    start(driver, "echo up; exec sleep 1000")
    driver.until(lambda: driver.texts(RUN, TASK) == ["up"])
    kept = runs / RUN
    kept.rename(tmp_path / "kept")
    try:
        found = of(examine(tmp_path / "state", frozenset(), fix=False), "processes")
        assert [finding.found.partition(" (")[0].rpartition(" ")[0] for finding in found] == [
            "The supervisor",
            "The process",
        ]
        fixed = of(examine(tmp_path / "state", frozenset(), fix=True), "processes")
        assert {finding.status for finding in fixed} == {"fixed"}
        assert process_tags.tagged(RUN) == []
    finally:
        (tmp_path / "kept").rename(kept)


def test_leftover_directories_are_found_and_removed_and_the_rest_is_kept(tmp_path: Path) -> None:
    state = tmp_path / "state"
    live, over = unique_run("a"), unique_run("b")
    for name in (f"runs/.removed-{over}", f"containers/{over}", f"environments/{over}", f"staging/{over}"):
        (state / name).mkdir(parents=True)
        (state / name / "something").write_text("x" * 9999)
    for name in (f"runs/{live}", f"environments/{live}", f"staging/{live}", f"runs/{OTHER}"):
        (state / name).mkdir(parents=True)
    write_json(state / "runs" / live / "run.json", {"run_id": live})
    (state / "runs" / OTHER / "run.json").write_text("damaged")  # its processes may live: the agent's part

    found = of(examine(state, frozenset({live}), fix=False), "directories")
    assert len(found) == 4
    assert {finding.status for finding in found} == {"problem"}

    fixed = of(examine(state, frozenset({live}), fix=True), "directories")
    assert [finding.status for finding in fixed] == ["fixed"] * 4
    left = sorted(str(path.relative_to(state)) for path in state.glob("*/*"))
    assert left == [f"environments/{live}", f"runs/{OTHER}", f"runs/{live}", f"staging/{live}"]


def test_environments_are_let_be_where_the_server_could_not_be_asked(tmp_path: Path) -> None:
    environment = tmp_path / "state" / "environments" / RUN
    environment.mkdir(parents=True)
    (found,) = of(examine(tmp_path / "state", None, fix=True), "directories")
    assert found.status == "unknown"
    assert environment.exists()


def test_what_goes_by_itself_beside_an_agent_at_work_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    removed = state / "runs" / f".removed-{RUN}"
    removed.mkdir(parents=True)
    lock = try_lock(state / "agent.lock")
    assert lock is not None
    monkeypatch.setattr("trainyard_agent.doctor.time.sleep", lambda _: shutil.rmtree(removed))
    try:
        assert problems(examine(state, frozenset(), fix=False)) == []
        assert not removed.exists()
    finally:
        os.close(lock)


def test_runs_of_containers_without_an_engine_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "state" / "containers" / RUN).mkdir(parents=True)
    write_json(tmp_path / "state" / "containers" / RUN / "run.json", {"run_id": RUN})
    (found,) = of(examine(tmp_path / "state", frozenset({RUN}), fix=True), "containers")
    assert found.status == "problem"
    assert "There are runs of containers on this machine" in found.found


def test_command_line_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "environments" / RUN).mkdir(parents=True)
    assert main(["--state-dir", str(tmp_path), "--doctor", "--live-runs", f"{OTHER},"]) == 0
    findings = [Finding.model_validate(one) for one in json.loads(capsys.readouterr().out)]
    assert problems(findings) == ["directories"]
    assert main(["--state-dir", str(tmp_path), "--doctor", "--fix", "--live-runs", ""]) == 0
    assert list((tmp_path / "environments").iterdir()) == []
