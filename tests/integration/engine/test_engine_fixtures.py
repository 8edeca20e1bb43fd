"""The fixtures of container tests: the engines of tests/beds/engines.py, the registries of tests/beds/registry.py."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import docker.errors
import psutil
import pytest

from beds import engines
from beds.engines import Engine, NoEngine, OwnEngine
from beds.registry import Drops, Hangs, Pauses, Registry, RequiresAuth

LABEL = "trainyard-test-fixtures"
DEADLINE_S = 60.0


@pytest.fixture
def image(engine: Engine) -> Iterator[str]:
    """A small one that no engine has seen before: what is here already would not be pulled."""
    files = {"noise": os.urandom(4 << 20)}
    name = engine.build(f"{LABEL}-{uuid.uuid4().hex[:8]}", "FROM scratch\nCOPY noise /noise\n", files)
    yield name
    for found in engine.client().images.list():
        for tag in found.tags:
            if name in tag:
                engine.client().images.remove(tag)


def offered(registry: Registry, engine: Engine, image: str) -> str:
    """The image is in the registry alone."""
    name = registry.add(engine, image, f"{image}:1")
    engine.client().images.remove(image)
    return name


def sleeper(engine: Engine) -> Any:
    return engine.client().containers.run(
        engine.base_image, ["sleep", "1000"], detach=True, init=True, labels=[LABEL]
    )


def test_base_image_runs_python_and_installs_offline(engine: Engine) -> None:
    command = [
        "sh",
        "-c",
        "python3 -c 'import setuptools, pip, wheel' && python3 -m venv /v && /v/bin/pip --version",
    ]
    printed = engine.client().containers.run(engine.base_image, command, remove=True)
    assert b"from /v/lib" in printed


def test_leftovers_are_told_by_kind_and_name(engine: Engine) -> None:
    client = engine.client()
    labels = {LABEL: uuid.uuid4().hex}
    label = f"{LABEL}={labels[LABEL]}"
    container = client.containers.create(engine.base_image, ["true"], labels=labels)
    network = client.networks.create(f"network-{labels[LABEL]}", labels=labels)
    volume = client.volumes.create(f"volume-{labels[LABEL]}", labels=labels)
    try:
        assert engine.remaining(label) == [
            f"container {container.name} (created)",
            f"network {network.name}",
            f"volume {volume.name}",
        ]
        assert set(engine.remaining(label)) <= set(engine.remaining())
    finally:
        container.remove()
        network.remove()
        volume.remove()
    assert engine.remaining(label) == []


def test_build_adds_files_to_the_base_image(engine: Engine) -> None:
    dockerfile = f"FROM {engine.base_image}\nCOPY say.py /say.py\n"
    name = engine.build(f"{LABEL}-built", dockerfile, {"say.py": b"print('built')"})
    try:
        assert engine.client().containers.run(name, ["python3", "/say.py"], remove=True) == b"built\n"
    finally:
        engine.client().images.remove(name)


def test_own_engine_restart_ends_its_containers(own_engine: OwnEngine) -> None:
    container = sleeper(own_engine)
    own_engine.restart()
    assert own_engine.client().containers.get(container.id).status == "exited"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_own_engine_with_live_restore_finds_its_containers_again(own_engine: OwnEngine, how: str) -> None:
    own_engine.restart(live_restore=True)
    container = sleeper(own_engine)
    container.reload()
    pid = container.attrs["State"]["Pid"]
    getattr(own_engine, how)()
    with pytest.raises(docker.errors.DockerException):
        own_engine.client()
    assert psutil.pid_exists(pid)
    own_engine.start(live_restore=True)
    found = own_engine.client().containers.get(container.id)
    assert (found.status, found.attrs["State"]["Pid"]) == ("running", pid)


def test_two_engines_do_not_see_each_others_containers(engine: Engine, own_engine: OwnEngine) -> None:
    ours, theirs = sleeper(own_engine), sleeper(engine)
    try:
        assert own_engine.remaining(LABEL) == [f"container {ours.name} (running)"]
        assert f"container {theirs.name} (running)" in engine.remaining(LABEL)
        assert f"container {ours.name} (running)" not in engine.remaining(LABEL)
    finally:
        theirs.remove(force=True)


def test_engine_removed_while_it_is_down_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    """Its container, too, is gone."""
    roots = remembered_roots(monkeypatch)
    try:
        with engines.own() as own:
            own.provide_base_image()
            own.restart(live_restore=True)
            container = sleeper(own)
            container.reload()
            pid = container.attrs["State"]["Pid"]
            own.kill()
    except NoEngine as missing:
        pytest.skip(str(missing))
    assert not psutil.pid_exists(pid)
    assert traces(roots) == []


def test_engine_that_cannot_come_up_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As for root in a container that may not mount. (Who is not root reads that it takes root.)"""
    roots = remembered_roots(monkeypatch)
    stub = tmp_path / "dockerd"
    stub.write_text("#!/bin/sh\necho 'failed to start daemon: operation not permitted'\nexit 1\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with (
        pytest.raises(NoEngine, match=r"operation not permitted|takes root|fails on this machine"),
        engines.own(),
    ):
        pass
    assert traces(roots) == []


def test_pull_from_a_registry_brings_the_image(engine: Engine, image: str) -> None:
    config = engine.client().images.get(image).id
    with Registry.start() as registry:
        name = offered(registry, engine, image)
        assert engine.client().images.pull(name).id == config


@pytest.mark.parametrize(("unknown", "words"), [(":2", "manifest unknown"), ("-two:1", "name not known")])
def test_pull_of_what_a_registry_does_not_have_is_not_found(
    engine: Engine, image: str, unknown: str, words: str
) -> None:
    with Registry.start() as registry:
        name = offered(registry, engine, image).removesuffix(":1")
        with pytest.raises(docker.errors.NotFound, match=words):
            engine.client().images.pull(name + unknown)


def test_pull_that_requires_a_user_takes_the_right_one_alone(engine: Engine, image: str) -> None:
    user, password = RequiresAuth.USER, RequiresAuth.PASSWORD
    with RequiresAuth.start() as registry:
        name = offered(registry, engine, image)
        with pytest.raises(docker.errors.APIError, match="no basic auth credentials"):
            engine.client().images.pull(name)
        with pytest.raises(docker.errors.APIError, match="unauthorized"):
            engine.client().images.pull(name, auth_config={"username": user, "password": "wrong"})
        engine.client().images.pull(name, auth_config={"username": user, "password": password})


def test_pull_that_hangs_goes_on_when_it_is_released(engine: Engine, image: str) -> None:
    with Hangs.start() as registry, ThreadPoolExecutor() as threads:
        name = offered(registry, engine, image)
        pull = threads.submit(engine.client().images.pull, name)
        assert registry.held.wait(DEADLINE_S)
        assert not pull.done()
        registry.released.set()
        pull.result(DEADLINE_S)


def test_pull_that_pauses_shows_its_progress(engine: Engine, image: str) -> None:
    with Pauses.start() as registry:
        name = offered(registry, engine, image)
        shares = []
        for printed in engine.client().api.pull(name, stream=True, decode=True):
            detail = printed.get("progressDetail")
            if detail and printed["status"] == "Downloading":
                shares.append(detail["current"] / detail["total"])
                registry.released.set()
        assert 0 < min(shares) < 0.6
        assert engine.client().images.get(name)


def test_pull_that_is_cut_again_and_again_fails(engine: Engine, image: str) -> None:
    """The engine asks once more for what is missing, as it is started by the tests."""
    with Drops.start() as registry:
        name = offered(registry, engine, image)
        printed = list(engine.client().api.pull(name, stream=True, decode=True))
        assert "unexpected EOF" in printed[-1]["error"]
        with pytest.raises(docker.errors.APIError):
            engine.client().images.get(name)


def remembered_roots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where the engines lie that are made from now on."""
    roots: list[str] = []
    make = tempfile.mkdtemp

    def remember(*arguments: Any, **options: Any) -> str:
        roots.append(make(*arguments, **options))
        return roots[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", remember)
    return roots


def traces(roots: list[str]) -> list[str]:
    """Every directory, process, mount and network of theirs."""
    found = [root for root in roots if Path(root).exists()]
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if any(r in line for r in roots)]
    found += [root for root in roots if Path("/run/netns", Path(root).name).exists()]
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        found += [" ".join(words) for root in roots if any(word.startswith(root) for word in words)]
    return found
