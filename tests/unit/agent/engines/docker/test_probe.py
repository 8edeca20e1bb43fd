"""An engine that starts later is found, and one that goes away is missed."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from beds.mounts import small_disk
from trainyard_agent.engines.docker.client import EngineDown, EngineInfo, EngineRefused
from trainyard_agent.engines.docker.probe import EngineProbe, EngineState
from trainyard_agent.engines.docker.runtime import DockerRuntime
from trainyard_agent.engines.docker.spec import Owner
from trainyard_protocol.states import ReplicaState
from unit.agent.stub_server import run_order

NEWER = EngineInfo("engine", "24.0", cpus=2, memory_bytes=4, live_restore=False)


class SomeEngine:
    url = "unix:///x.sock"

    def __init__(self) -> None:
        self.info = EngineInfo("engine", "20.10", cpus=2, memory_bytes=4, live_restore=False)
        self.images: set[str] = set()
        self.error: Exception | None = None

    def about(self) -> EngineInfo:
        self.ping()
        return self.info

    def ping(self) -> None:
        if self.error is not None:
            raise self.error

    def image(self, name: str) -> dict[str, Any] | None:
        return {"Id": name} if name in self.images else None


def test_engine_that_comes_and_goes_is_followed() -> None:
    engine = SomeEngine()
    probe = EngineProbe(engine, ["built:1", "other:1"])  # type: ignore[arg-type]

    engine.error = EngineDown("the container engine does not answer", "No such file or directory")
    away = "no Docker engine answers at unix:///x.sock (No such file or directory)"
    assert probe.poll() == EngineState(problem=away)

    engine.error = None
    assert probe.poll() == EngineState(engine.info)
    engine.images = {"built:1", "unasked:1"}
    here = EngineState(engine.info, frozenset({"built:1"}))
    assert probe.poll() == here
    assert here.about == "Docker engine 20.10"

    engine.error = EngineDown("the container engine does not answer", "Permission denied")
    assert "this user must join the group of that socket" in probe.poll().problem
    engine.error = EngineRefused(500, "it has no disk")
    known = EngineState(here.info, here.images, "the Docker engine at unix:///x.sock refuses: it has no disk")
    assert probe.poll() == known

    engine.error, engine.info = None, NEWER
    assert probe.poll() == EngineState(NEWER, here.images)


def test_engine_whose_disk_has_no_room_says_so_until_it_has(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        engine = SomeEngine()
        engine.info = replace(engine.info, root=str(disk.path))
        probe = EngineProbe(engine, reserve=10**9)  # type: ignore[arg-type]
        assert probe.poll().problem == ""
        disk.fill()
        assert probe.poll().problem == f"the container engine's {disk.path} has less than 1.7 MB left"
        disk.free()
        assert probe.poll().problem == ""
    engine.info = replace(engine.info, root=str(tmp_path / "seen by the engine alone"))
    assert EngineProbe(engine, reserve=10**9).poll().problem == ""  # type: ignore[arg-type]


def test_machine_without_an_engine_never_loads_the_sdk() -> None:
    program = (
        "import sys, trainyard_agent.main\n"
        "from trainyard_agent.engines.docker.client import DockerClient\n"
        "from trainyard_agent.engines.docker.probe import EngineProbe\n"
        "print(EngineProbe(DockerClient('unix:///nowhere/docker.sock')).poll().problem)\n"
        "print([name for name in ('docker', 'requests', 'urllib3', 'kubernetes') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    away = "no Docker engine answers at unix:///nowhere/docker.sock (No such file or directory)"
    assert done.stdout.splitlines() == [away, "[]"]


class Hangs:
    """Holds up whoever asks it."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked")


def test_runs_are_observed_without_an_engine_that_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    probe = SimpleNamespace(state=EngineState(problem="no Docker engine answers at x (timed out)"), engine=Hangs())
    runtime = DockerRuntime(tmp_path, Hangs(), Owner("a"), probe=probe)  # type: ignore[arg-type]
    runtime.place(run_order("1" * 32))

    assert [report.state for report in runtime.observe("1" * 32)] == [ReplicaState.PENDING]
    assert "no Docker engine answers at x (timed out). Containers keep running" in caplog.text
