"""`python -m trainyard_agent --doctor`: what is left of runs is found, with the command that removes it."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from beds.run_ids import unique_run
from trainyard_agent import main as agent_command
from trainyard_agent.engines.docker import doctor as docker_doctor
from trainyard_agent.engines.docker.network.firewall import Firewall
from trainyard_agent.host import process_tags
from trainyard_agent.host.files import try_lock, write_json
from trainyard_agent.main import main
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.answers.health import Finding
from unit.agent.shells import RUN, TASK

OTHER = unique_run("2")
GONE = "/in/a/container/of/the/agent"

Start = Callable[[Path, str], subprocess.Popen[bytes]]


class NoRules(Firewall):
    """A machine without firewall rules. The real one may have those of a test beside this one."""

    def survey(self) -> tuple[set[str], set[str]]:
        return set(), set()


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine.sock")
    monkeypatch.setattr(docker_doctor, "Firewall", NoRules)


@pytest.fixture
def left() -> Iterator[Start]:
    """`left(state_dir, run_id)`: a process that carries the mark of a replica there."""
    processes = []

    def start_(state_dir: Path, run_id: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **process_tags.tag(run_id, TASK, state_dir)}
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


def examine(state_dir: Path) -> list[Finding]:
    return agent_command.examine(AgentSettings(state_dir=state_dir))


def problems(state_dir: Path, process: subprocess.Popen[bytes] | None = None) -> list[Finding]:
    """The problems, or those about a process: another test's may be orphaned beside it."""
    found = [finding for finding in examine(state_dir) if finding.status == "problem"]
    return [one for one in found if process is None or f" {process.pid} (" in one.found]


def test_nothing_left_is_nothing_wrong_and_makes_nothing(tmp_path: Path) -> None:
    assert {finding.status for finding in examine(tmp_path / "state")} == {"ok"}
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("exists", [True, False])
def test_process_of_a_run_that_is_gone_has_the_command_that_kills_it(tmp_path: Path, left: Start, exists: bool) -> None:
    """Also where the whole installation is gone."""
    state = tmp_path / "state"
    if exists:
        state.mkdir()
    process = left(state, RUN)
    (found,) = problems(state, process)
    what = f"The process {process.pid} (sleep 1000) of the run {RUN[:12]} is orphaned: the run does not exist."
    assert (found.check, found.found, found.command) == ("orphans", what, f"kill -KILL {process.pid}")
    assert process.poll() is None
    subprocess.run(["sh", "-c", found.command], check=True)
    assert process.wait(10) == -9
    assert problems(state, process) == []


def test_process_of_a_run_that_exists_or_of_another_installation_is_no_orphan(tmp_path: Path, left: Start) -> None:
    state = tmp_path / "state"
    (state / "runs" / RUN / TASK).mkdir(parents=True)
    write_json(state / "runs" / RUN / "run.json", {"run_id": RUN})
    (tmp_path / "other").mkdir()
    left(state, RUN), left(tmp_path / "other", OTHER)
    assert problems(state) == []


def test_what_goes_by_itself_beside_an_agent_at_work_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: Start
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    process = left(state, RUN)
    lock = try_lock(state / "agent.lock")
    assert lock is not None

    def end(_: float) -> None:
        process.kill()
        process.wait()

    monkeypatch.setattr("trainyard_agent.engines.examining.time.sleep", end)
    try:
        assert problems(state, process) == []
        assert process.returncode == -9
    finally:
        os.close(lock)


def test_runs_of_containers_without_an_engine_are_a_problem_whose_orphans_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "state" / "containers" / RUN).mkdir(parents=True)
    write_json(tmp_path / "state" / "containers" / RUN / "run.json", {"run_id": RUN})
    findings = examine(tmp_path / "state")
    assert [(one.check, one.status) for one in findings] == [("containers", "problem"), ("orphans", "unknown")]
    assert "There are runs of containers on this machine" in findings[0].found


def test_command_line_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], left: Start) -> None:
    process = left(tmp_path, RUN)
    assert main(["--state-dir", str(tmp_path), "--doctor"]) == 0
    findings = [Finding.model_validate(one) for one in json.loads(capsys.readouterr().out)]
    assert f"kill -KILL {process.pid}" in [finding.command for finding in findings]


@pytest.mark.parametrize(
    ("words", "is_served"),
    [
        (["python", "-m", "trainyard_agent", "--state-dir", GONE], True),
        (["python", "-m", "trainyard_agent"], True),  # the variable or a file may name it
        (["python", "-m", "trainyard_agent", f"--state-dir={GONE}"], True),
        (["python", "-m", "trainyard_agent", "--state-dir", "/another"], False),
        (["python", "-m", "another", "--state-dir", GONE], False),
    ],
)
def test_state_directory_that_only_its_agent_has_may_be_served(
    monkeypatch: pytest.MonkeyPatch, words: list[str], is_served: bool
) -> None:
    processes = [SimpleNamespace(pid=1, info={"cmdline": words}), SimpleNamespace(pid=2, info={"cmdline": None})]
    monkeypatch.setattr("psutil.process_iter", lambda _: processes)
    assert docker_doctor._is_served(GONE) == is_served
