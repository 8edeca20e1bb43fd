"""Engines that an agent opens, what it offers of them, and how its replicas reach this machine."""

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from beds.open_engines import agent_settings, process_and_docker
from trainyard_agent.engines.contract import SettingsRefused
from trainyard_agent.engines.docker import engine as docker_engine
from trainyard_agent.engines.docker.client import EngineInfo
from trainyard_agent.engines.docker.engine import from_containers
from trainyard_agent.engines.docker.probe import EngineProbe, EngineState
from trainyard_agent.engines.docker.settings import DockerSettings
from trainyard_agent.engines.fake import FOREVER, FakeHost, FakeRuntime
from trainyard_agent.host.clock import ManualClock
from trainyard_agent.opening import OpenRuntimes, described, open_engines
from trainyard_agent.server_client import ServerClient
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.job.resources import Capacity
from trainyard_protocol.job.runtimes import PackageJobs, load_runtimes
from trainyard_protocol.wire.agents import AgentInfo, RuntimeName, RuntimeOffer
from unit.agent.stub_server import agent_info

HOST = FakeHost(ManualClock(), lambda _: FOREVER)
ENGINE = EngineInfo("engine", "20.10", cpus=1, memory_bytes=4 << 30, live_restore=False)
AWAY = "no Docker engine answers at unix:///x.sock (No such file or directory)"
EMULATOR = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:8471"}
IN_CONTAINERS = {"STORAGE_EMULATOR_HOST": "http://host.docker.internal:8471"}
ME = agent_info(runtime="process")
BOTH: list[RuntimeName] = ["process", "docker"]


def settings(state_dir: Path, *words: str) -> AgentSettings:
    return agent_settings("--server", "http://s", "--token-file", "t", "--state-dir", str(state_dir), *words)


def offered(
    engine: EngineState, *admitted: RuntimeName, package_jobs: PackageJobs = "process", closed: str = ""
) -> AgentInfo:
    table = replace(load_runtimes(), package_jobs=package_jobs)
    runtimes = {name: FakeRuntime(HOST, name) for name in ("process", "docker")}
    opened = process_and_docker(runtimes, lambda: engine, EMULATOR, table, closed)
    if "docker" not in admitted:
        opened["docker"] = replace(opened["docker"], describe=lambda info: info)
    return described(ME, {name: opened[name] for name in admitted}, opened)


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


@pytest.mark.parametrize(
    ("engine", "admitted", "given", "expected"),
    [
        (EngineState(problem=AWAY), BOTH, {}, ("process", False, True, AWAY)),
        (EngineState(ENGINE, problem=AWAY), BOTH, {}, ("process", False, True, AWAY)),
        (EngineState(ENGINE, problem=AWAY), ["docker"], {}, ("docker", False, False, AWAY)),
        (EngineState(ENGINE, problem=AWAY), BOTH, {"package_jobs": "container"}, ("docker", False, False, AWAY)),
        (EngineState(), ["process"], {}, ("process", False, True, "")),
        (EngineState(problem=AWAY), ["docker"], {"closed": "it may not"}, ("docker", False, False, AWAY)),
    ],
    ids=["never answered", "answers no more", "containers alone", "packages in containers", "processes alone", "users"],
)
def test_offer_without_an_engine_waits_for_it_or_is_of_package_jobs(
    engine: EngineState, admitted: list[RuntimeName], given: dict[str, Any], expected: tuple[str, bool, bool, str]
) -> None:
    info = offered(engine, *admitted, **given)
    assert (info.runtime, info.runs_images, info.runs_packages, info.engine_problem) == expected
    assert info.no_processes == given.get("closed", "")
    assert info.environment_in("docker") == IN_CONTAINERS
    assert info.capacity == (ME.capacity if engine.info is None else Capacity(cpus=(0,), memory_bytes=4 << 30))
    assert [offer.name for offer in info.runtimes if offer.retiring] == [name for name in BOTH if name not in admitted]


def test_processes_alone_are_refused_where_they_may_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SettingsRefused, match=r"--runtime process: .* Add --one-user"):
        opened(tmp_path, "--runtime", "process").__enter__()


@pytest.mark.parametrize(
    ("user", "words", "offered"),
    [
        (1000, ["--one-user"], True),
        (1000, [], False),
        (0, ["--one-user"], True),
        (0, [], False),  # its state directory is closed to others
    ],
)
def test_processes_are_for_one_user_or_need_users_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, words: list[str], offered: bool
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setattr("os.geteuid", lambda: user)
    state_dir = tmp_path / "closed" / "state"
    state_dir.mkdir(parents=True)
    state_dir.parent.chmod(0o700)
    with opened(state_dir, *words) as runtimes:
        info = runtimes.info(ME)
    assert (info.runtime, info.no_processes == "") == (("process", True) if offered else ("docker", False))


def test_network_of_containers_is_this_machines_only_for_one_user(tmp_path: Path) -> None:
    assert settings(tmp_path).of(DockerSettings).policy(one_user=False) == "egress"
    assert settings(tmp_path).of(DockerSettings).policy(one_user=True) == "all"
    assert settings(tmp_path, "--network", "none").of(DockerSettings).policy(one_user=True) == "none"


def test_network_policy_that_cannot_be_enforced_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answers(EngineProbe):
        def poll(self) -> EngineState:
            self.state = EngineState(ENGINE)
            return self.state

    monkeypatch.setattr(docker_engine, "EngineProbe", Answers)
    monkeypatch.setenv("PATH", str(tmp_path))  # without iptables
    refused = r"--network egress cannot be enforced: there is no program iptables .* With --network all"
    with pytest.raises(SettingsRefused, match=refused), opened(tmp_path):
        pass


def test_docker_without_an_engine_is_refused_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "_ENGINE_TIMEOUT_S", 0.0)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    refused = f"--runtime docker: no Docker engine answers at unix://{tmp_path}/none.sock"
    with pytest.raises(SettingsRefused, match=refused), opened(tmp_path, "--runtime", "docker"):
        pass


@pytest.mark.parametrize(
    ("words", "directory", "names"),
    [
        (["--one-user"], "", ["process", "docker"]),
        (["--runtime", "process", "--one-user"], "", ["process"]),
        (["--runtime", "process", "--one-user"], "containers", ["process", "docker"]),
        ([], "runs", ["process", "docker"]),
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
    return open_engines(settings(state_dir, *words), "a", ServerClient("http://s", "t", "k"))


def test_addresses_of_this_machine_are_given_as_containers_reach_them() -> None:
    table = {
        "http://127.0.0.1:8471": "http://host.docker.internal:8471",
        "http://localhost": "http://host.docker.internal",
        "http://[::1]:80/x": "http://host.docker.internal:80/x",
        "http://127.0.0.100:1": "http://127.0.0.100:1",
        "http://storage.example:1": "http://storage.example:1",
        "127.0.0.1": "127.0.0.1",
    }
    assert {value: from_containers(value) for value in table} == table
