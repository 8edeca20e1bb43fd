"""A server behind a socket whose agent plays a trainer, its Python client, and `trainyard jobs` as a user types it."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from integration.api.api_support import ALICE, ScriptedAgent, Server, server, serving
from trainyard import Client
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run as typed
from trainyard_protocol.wire.sync import RunOrder

LOSSES = (3.0, 0.5, 0.75)
Jobs = Callable[[str | list[str]], tuple[int, str]]


@pytest.fixture
def jobs(capsys: pytest.CaptureFixture[str]) -> Jobs:
    """The exit code of the words, and stderr before stdout."""

    def type_(words: str | list[str]) -> tuple[int, str]:
        code = typed(trainyard, "trainyard", ["jobs", *(words.split() if isinstance(words, str) else words)])
        return code, "".join(reversed(capsys.readouterr()))

    return type_


class RealClock:
    """The time of the machine."""

    def __call__(self) -> datetime:
        return datetime.now(UTC)

    def stopwatch(self) -> float:
        return time.monotonic()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client in a directory with a config and a package, of a server whose agent trains."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").touch()
    (tmp_path / "trainer" / "task.py").touch()
    (tmp_path / "config.yaml").write_text("trainingInput: {pythonModule: installed.task}\n")
    monkeypatch.chdir(tmp_path)
    clock: Any = RealClock()
    changes: dict[str, Any] = {"run_loops": True, "tick_s": 0.02}
    changes |= {"job_dir_roots": (str(tmp_path),), "one_user": True}
    with server(tmp_path / "server", clock, **changes) as api, serving(api.app) as url, training(api):
        monkeypatch.setenv("TRAINYARD_SERVER", url)
        monkeypatch.setenv("TRAINYARD_TOKEN", ALICE["Authorization"].split()[1])
        with Client() as made:
            yield made


@contextmanager
def training(api: Server) -> Iterator[None]:
    """An agent that trains every job at once; a learning rate that is no number fails, one of 0 never ends."""
    agent, ended = ScriptedAgent(api, cpus=16, memory_gb=64), threading.Event()

    def play() -> None:
        seen: set[str] = set()
        while not ended.wait(0.01):
            agent.sync()
            for run in [run for run in agent.runs.values() if run.run_id not in seen]:
                seen.add(run.run_id)
                train(agent, run)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def train(agent: ScriptedAgent, run: RunOrder) -> None:
    agent.start(run)
    for step, loss in enumerate(LOSSES):
        agent.log(json.dumps({"event": "progress", "step": step * 100, "steps": 200, "loss": loss}), run=run)
    if "high" in run.training_input.args:
        agent.log("ERROR: the learning rate is no number", run=run)
        agent.exit(run=run, code=3, message="It exited with 3.")
    elif "0" not in run.training_input.args:
        model = Path(run.training_input.job_dir or ".") / "model" / "variables"
        model.mkdir(parents=True, exist_ok=True)
        (model / "weights.bin").write_bytes(b"weights")
        agent.exit(run=run)
