"""Which runtime an agent works with, and what its replicas are told of this machine."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from trainyard_agent import capacity, runtime_selection
from trainyard_agent.options import parse
from trainyard_agent.runtime_selection import RuntimeRefused, from_containers
from trainyard_agent.runtimes.docker.engine import EngineDown, EngineInfo
from trainyard_protocol.runtimes import load_runtimes
from trainyard_protocol.sync import Capacity

DEFAULT_IMAGE = load_runtimes().image_for("", gpus=False)


class SomeEngine:
    def __init__(self, *images: str, down: bool = False) -> None:
        self.images = images
        self.down = down

    def about(self) -> EngineInfo:
        if self.down:
            raise EngineDown("the container engine at x does not answer (no such file)")
        return EngineInfo("engine", "20.10", cpus=2, memory_bytes=4, live_restore=False)

    def image(self, name: str) -> dict[str, Any] | None:
        return {"Id": name} if name in self.images else None


def options(state_dir: Path, *words: str) -> argparse.Namespace:
    return parse(["--server", "http://s", "--token-file", "t", "--state-dir", str(state_dir), *words])


def chosen(state_dir: Path, engine: SomeEngine, *words: str) -> str:
    return runtime_selection._choose(options(state_dir, *words), engine)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (SomeEngine(DEFAULT_IMAGE), "docker"),
        (SomeEngine(), "process"),
        (SomeEngine(DEFAULT_IMAGE, down=True), "process"),
    ],
)
def test_auto_takes_containers_where_every_job_can_run_in_them(
    tmp_path: Path, engine: SomeEngine, expected: str
) -> None:
    assert chosen(tmp_path, engine) == expected


def test_docker_needs_no_runtime_image_when_it_is_asked_for(tmp_path: Path) -> None:
    assert chosen(tmp_path, SomeEngine(), "--runtime", "docker") == "docker"


def test_docker_without_an_engine_is_refused_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_selection, "_ENGINE_TIMEOUT_S", 0.0)
    with pytest.raises(RuntimeRefused, match="--runtime docker: the container engine at x does not answer"):
        chosen(tmp_path, SomeEngine(down=True), "--runtime", "docker")


@pytest.mark.parametrize(("directory", "kind"), [("runs", "process"), ("containers", "docker")])
def test_what_runs_decides_for_auto(tmp_path: Path, directory: str, kind: str) -> None:
    (tmp_path / directory / "run").mkdir(parents=True)
    assert chosen(tmp_path, SomeEngine(DEFAULT_IMAGE)) == kind


@pytest.mark.parametrize(("directory", "asked"), [("runs", "docker"), ("containers", "process")])
def test_other_runtime_than_what_runs_is_refused(tmp_path: Path, directory: str, asked: str) -> None:
    (tmp_path / directory / "run").mkdir(parents=True)
    with pytest.raises(RuntimeRefused, match=f"--runtime {asked}: .* still has replicas of the"):
        chosen(tmp_path, SomeEngine(DEFAULT_IMAGE), "--runtime", asked)


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("http://127.0.0.1:8471", "http://host.docker.internal:8471"),
        ("http://localhost", "http://host.docker.internal"),
        ("http://[::1]:80/x", "http://host.docker.internal:80/x"),
        ("http://127.0.0.100:1", "http://127.0.0.100:1"),
        ("http://storage.example:1", "http://storage.example:1"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_addresses_of_this_machine_are_given_as_containers_reach_them(value: str, seen: str) -> None:
    assert from_containers(value) == seen


def test_capacity_is_no_more_than_the_engine_has() -> None:
    offered = Capacity(cpus=(0, 1, 5), memory_bytes=9)
    engine = EngineInfo("engine", "20.10", cpus=4, memory_bytes=4, live_restore=False)
    assert capacity.of_engine(offered, engine) == Capacity(cpus=(0, 1), memory_bytes=4)


@pytest.mark.parametrize("words", [["--pids-limit", "0"], ["--pids-limit", "x"], ["--pull", "now"]])
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        options(tmp_path, *words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err
