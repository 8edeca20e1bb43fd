"""The runtimes that an agent opens, what it offers of them, and what its replicas are told of this machine."""

import argparse
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from trainyard_agent import capacity, runtime_selection
from trainyard_agent.control.runtime_choice import Machine
from trainyard_agent.options import parse
from trainyard_agent.runtime_selection import (
    OpenRuntimes,
    RuntimeRefused,
    from_containers,
    offer,
    open_runtimes,
)
from trainyard_agent.runtimes.docker.engine import EngineInfo
from trainyard_agent.runtimes.docker.probe import EngineState
from trainyard_agent.server_client import ServerClient
from trainyard_protocol.runtimes import PackageJobs, load_runtimes
from trainyard_protocol.sync import AgentInfo, Capacity, RuntimeName, RuntimeOffer

ENGINE = EngineInfo("engine", "20.10", cpus=1, memory_bytes=4 << 30, live_restore=False)
AWAY = "no Docker engine answers at unix:///x.sock (No such file or directory)"
EMULATOR = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:8471"}
IN_CONTAINERS = {"STORAGE_EMULATOR_HOST": "http://host.docker.internal:8471"}
ME = AgentInfo(
    agent_id="a",
    name="a",
    version="0",
    runtime="process",
    capacity_mode="fit",
    runs_images=False,
    capacity=Capacity(cpus=(0, 1), memory_bytes=8 << 30),
)


def options(state_dir: Path, *words: str) -> argparse.Namespace:
    return parse(["--server", "http://s", "--token-file", "t", "--state-dir", str(state_dir), *words])


def offered(engine: EngineState, *runtimes: RuntimeName, package_jobs: PackageJobs = "process") -> AgentInfo:
    table = replace(load_runtimes(), package_jobs=package_jobs)
    machine = Machine(frozenset(runtimes), table, engine.info is not None)
    return offer(ME, machine, engine, EMULATOR, {"process", "docker"})


def test_offer_of_both_runtimes_is_on_what_both_have() -> None:
    info = offered(EngineState(ENGINE), "process", "docker")
    assert info.runtime == "process"
    assert info.runs_images
    assert info.capacity == Capacity(cpus=(0,), memory_bytes=4 << 30)
    assert info.runtimes == (
        RuntimeOffer(name="process", replica_environment=EMULATOR),
        RuntimeOffer(name="docker", replica_environment=IN_CONTAINERS, about="Docker engine 20.10"),
    )
    assert (info.environment_in("docker"), info.environment_in("")) == (IN_CONTAINERS, EMULATOR)


@pytest.mark.parametrize("known", [None, ENGINE])
def test_offer_without_an_answer_of_the_engine_is_of_package_jobs(known: EngineInfo | None) -> None:
    info = offered(EngineState(known, problem=AWAY), "process", "docker")
    assert (info.runs_images, info.runs_packages, info.engine_problem) == (False, True, AWAY)
    assert info.capacity == (ME.capacity if known is None else Capacity(cpus=(0,), memory_bytes=4 << 30))


@pytest.mark.parametrize("package_jobs", ["process", "container"])
def test_offer_of_containers_alone_waits_for_the_engine(package_jobs: PackageJobs) -> None:
    runtimes: tuple[RuntimeName, ...] = ("docker",) if package_jobs == "process" else ("process", "docker")
    info = offered(EngineState(ENGINE, problem=AWAY), *runtimes, package_jobs=package_jobs)
    assert (info.runtime, info.runs_images, info.runs_packages) == ("docker", False, False)
    assert info.replica_environment == IN_CONTAINERS


def test_offer_of_processes_alone_keeps_the_environment_of_containers_that_run() -> None:
    info = offered(EngineState(), "process")
    assert (info.runs_images, info.engine_problem, info.capacity) == (False, "", ME.capacity)
    assert [offer.retiring for offer in info.runtimes] == [False, True]
    assert info.environment_in("docker") == IN_CONTAINERS


def test_docker_without_an_engine_is_refused_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_selection, "_ENGINE_TIMEOUT_S", 0.0)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    refused = f"--runtime docker: no Docker engine answers at unix://{tmp_path}/none.sock"
    with pytest.raises(RuntimeRefused, match=refused), opened(tmp_path, "--runtime", "docker"):
        pass


@pytest.mark.parametrize(
    ("words", "directory", "names"),
    [
        ([], "", ["process", "docker"]),
        (["--runtime", "process"], "", ["process"]),
        (["--runtime", "process"], "containers", ["process", "docker"]),
    ],
)
def test_runtime_that_still_holds_runs_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], directory: str, names: list[str]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    if directory:
        (tmp_path / directory / "run").mkdir(parents=True)
    with opened(tmp_path, *words) as runtimes:
        assert [offer.name for offer in runtimes.info(ME).runtimes] == names
        assert runtimes.runtime.recover() == []


def opened(state_dir: Path, *words: str) -> AbstractContextManager[OpenRuntimes]:
    return open_runtimes(options(state_dir, *words), "a", ServerClient("http://s", "t"))


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
