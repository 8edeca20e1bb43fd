"""The agent's command: its command line, its lock, its end, and the end of what outlives it."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from beds.open_engines import agent_settings
from beds.token_files import write_token
from contract.runtimes.runtime_labs import Driver
from trainyard_agent.engines import registry
from trainyard_agent.engines.contract import OpenEngine, Place
from trainyard_agent.engines.fake import FakeRuntime
from trainyard_agent.engines.fake.engine import FakeEngine
from trainyard_agent.host import process_tags
from trainyard_agent.host.files import try_lock
from trainyard_agent.main import main
from trainyard_agent.runtimes.base import Handle
from trainyard_protocol.wire.sync import RunOrder
from unit.agent.shells import RUN, TASK, start
from unit.agent.stub_server import TOKEN, StubServer

DEADLINE_S = 60.0


def test_start_that_is_going_on_ends_before_the_runtime_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, events = threading.Event(), []

    class SlowToPlace(FakeRuntime):
        def place(self, order: RunOrder) -> Handle:
            begun.set()
            time.sleep(0.5)
            events.append("placed")
            return super().place(order)

    class Closing(FakeEngine):
        @contextmanager
        def open(self, place: Place) -> Iterator[OpenEngine]:
            try:
                with super().open(place) as opened:
                    yield opened
            finally:
                events.append("closed")

    engine = Closing()
    engine.runtime = SlowToPlace(engine.host)
    monkeypatch.setitem(registry.ENGINES, "fake", "trainyard_agent.engines.fake")
    monkeypatch.setattr("trainyard_agent.engines.fake.engine.ENGINE", engine)

    def end() -> None:
        begun.wait(DEADLINE_S)
        os.kill(os.getpid(), signal.SIGTERM)

    server = StubServer()
    server.order(RUN, TASK, pythonModule="program")
    write_token(tmp_path / "token", TOKEN)
    ender = threading.Thread(target=end)
    ender.start()
    flags = ["--token-file", str(tmp_path / "token"), "--state-dir", str(tmp_path / "state")]
    with server.listening() as url:
        assert main(["--server", url, "--runtime", "fake", *flags]) == 0
    ender.join()
    assert events == ["placed", "closed"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [("no engine", "the container engine at"), ("hanging installer", "processes 1 of run 2 cannot be killed")],
)
def test_stop_all_ends_processes_whatever_fails_beside_them(
    driver: Driver,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    words: str,
) -> None:
    def hangs(*_: object) -> None:
        raise process_tags.StillAlive("processes 1 of run 2 cannot be killed")

    start(driver, "exec sleep 1000")
    state_dir = runs.parent
    if fault == "no engine":
        (state_dir / "containers" / "worker-replica-0").mkdir(parents=True)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{state_dir}/none.sock")
    else:
        monkeypatch.setattr("trainyard_agent.engines.process.engine.kill_orphaned_installers", hangs)
    assert main(["--state-dir", str(state_dir), "--stop-all", "--grace", "0.2"]) == 1
    assert words in capsys.readouterr().err
    assert process_tags.tagged(RUN) == []


def test_stop_all_where_nothing_runs_does_nothing(tmp_path: Path) -> None:
    assert main(["--state-dir", str(tmp_path / "new"), "--stop-all"]) == 0


def test_second_agent_on_a_state_directory_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainyard_agent.main._LOCK_TIMEOUT_S", 0.0)
    lock = try_lock(tmp_path / "agent.lock")
    assert lock is not None
    os.write(lock, b"4711\n")

    assert main(["--state-dir", str(tmp_path), "--stop-all"]) == 1

    os.close(lock)
    assert "another worker agent (process 4711) uses the state directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "--server and --token-file are required"),
        (["--cpus", "x", "--memory-gb", "-1"], "must be a number above 0"),
        (["--replica-env", "no-name"], "must look like NAME=VALUE or NAME"),
        (["--replica-env", "UNSET_ANYWHERE"], "the agent's own environment has no such variable"),
        (["--replica-env", "TRAINYARD_TOKEN=x"], "are reserved"),
        (["--python", "/nowhere/python"], "there is no program '/nowhere/python'"),
        (["--capacity", "huge"], "invalid choice"),
        (["--job-uids", "0-10"], "must look like 61184-65519, from 1000 on"),
        (["--pids-limit", "0"], "--pids-limit"),
        (["--pids-limit", "x"], "--pids-limit"),
        (["--pull", "now"], "--pull"),
        (["--container-user", "0:7"], "must be auto, image, or ids such as 1000:1000, not root's"),
    ],
)
def test_wrong_flags_are_a_usage_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--state-dir", str(tmp_path), *flags])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_variables_of_replicas_are_in_no_message_and_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--state-dir", str(tmp_path), "--doctor", "--replica-env"]
    assert "hush" not in repr(agent_settings(*flags, "TOKEN=hush"))
    with pytest.raises(SystemExit):
        main([*flags, "TO-KEN=hush"])
    assert "hush" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "files", "words"),
    [
        (["--cpus", "99999"], ["token"], "cannot be used;"),
        ([], [], "cannot be read"),
        ([], ["token", "agent.json"], "agent.json is damaged"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], files: list[str], words: str
) -> None:
    for name in files:
        write_token(tmp_path / name, "t")
    asked = ["--server", "http://127.0.0.1:1", "--token-file", str(tmp_path / "token"), "--state-dir", str(tmp_path)]
    assert main([*asked, *flags]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert words in line
