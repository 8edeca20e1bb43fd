"""The fixtures of container tests: the engines of tests/beds/engines.py, the registries of tests/beds/registry.py."""

import os
import tempfile
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

from beds import engines
from beds.engines import Engine, NoEngine, OwnEngine

LABEL = "trainyard-test-fixtures"


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
    """The case of root in a container that may not mount. (Who is not root reads that it takes root.)"""
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


def remembered_roots(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Directories of the engines that are made from now on."""
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
