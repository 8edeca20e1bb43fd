"""Runs that give way in a real service: processes to a job of a higher band, containers when a machine is drained."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beds.engines import Engine
from beds.waiting import until
from e2e.harness import Service, local, started

QUOTAS = """
default: {preemptible: true}
preemption: {minRun: 1s, checkpointWait: 1m}
"""
ON_SIGTERM = """
import os, pathlib, signal, sys, time
file, stop = pathlib.Path(os.environ["TRAINYARD_JOB_DIR"], "step.txt"), []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
step = int(file.read_text()) if file.exists() else 0
while not stop:
    time.sleep(0.1)
    step += 1
    print(f"step={step} loss={1 / step:.3f}", flush=True)
time.sleep(2)
file.write_text(str(step))
print("saved at SIGTERM", flush=True)
"""
NOW_AND_THEN = """
import json, os, pathlib, time
file = pathlib.Path(os.environ["TRAINYARD_JOB_DIR"], "step.txt")
step = int(file.read_text()) if file.exists() else 0
while True:
    time.sleep(0.05)
    step += 1
    print(json.dumps({"event": "progress", "step": step}), flush=True)
    if step % 60 == 0:
        file.write_text(str(step))
        print(json.dumps({"event": "checkpoint", "step": step}), flush=True)
"""


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "quotas.yaml").write_text(QUOTAS)
    yield from started(tmp_path, "--capacity", "strict", "--cpus", "0,1", "--quotas", str(tmp_path / "quotas.yaml"))


def detail(service: Service, job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(service.ok("jobs", "describe", job, "--all", "--format", "json"))
    return found


def continuation(service: Service, job: str, run: int) -> tuple[int, int]:
    """The step behind which a run of the job continues, and the last one that the run before has reported."""
    service.wait_for_line(job, f"Run {run} continues at step ")
    last, this = detail(service, job)["runs"][-2:]
    assert this["number"] == run
    (line,) = (text for text in service.log(job).splitlines() if text.startswith(f"Run {run} continues"))
    return int(line.split("step ")[1].split(":")[0].replace(",", "")), last["replicas"][0]["step"]


def test_runs_give_way_after_they_have_saved(busy: Service) -> None:
    for name, source in (("catches", ON_SIGTERM), ("saves", NOW_AND_THEN)):
        busy.program(source, name)
        config = busy.config(f"{name}.yaml", **local(pythonModule=f"{name}.task"), scheduling={"band": "batch"})
        busy.ok("jobs", "submit", "training", name, "--config", str(config), "--package-path", name)
    until(lambda: "checkpoint" in busy.log("saves"), "a checkpoint")
    busy.wait_for_line("catches", "step=10 ")
    busy.program("print('urgent')", "urgent")
    busy.config("urgent.yaml", **local(pythonModule="urgent.task") | {"masterType": "local-2"})
    busy.ok("jobs", "submit", "training", "urgent", "--config", "urgent.yaml", "--package-path", "urgent")
    busy.wait_for("urgent", "SUCCEEDED")

    begin, reached = continuation(busy, "catches", 2)
    assert begin == reached, "it has saved with its last step"
    assert "saved at SIGTERM" in busy.log("catches")
    begin, reached = continuation(busy, "saves", 2)
    assert (begin % 60, begin >= 120) == (0, True), "it has saved once more before it was stopped"
    assert "Run 1 is stopped once it has saved a checkpoint, in 1m 00s at the latest." in busy.log("saves")
    lost = [(cause["cause"], cause["steps"]) for cause in detail(busy, "saves")["lost"]]
    assert lost == [("preemption", reached - begin)] * (reached > begin)
    assert detail(busy, "catches")["lost"] == []


@pytest.mark.usefixtures("nothing_left")
def test_container_leaves_its_drained_machine_after_it_has_saved(containers: Service, engine: Engine) -> None:
    master = {"imageUri": engine.base_image, "containerCommand": ["python3", "-c", NOW_AND_THEN]}
    gang = {"scaleTier": "CUSTOM", "masterType": "small", "pythonModule": None}
    config = containers.config("saves.yaml", **gang, masterConfig=master)
    containers.ok("jobs", "submit", "training", "contained", "--config", str(config))
    until(lambda: "checkpoint" in containers.log("contained"), "a checkpoint")
    (agent,) = json.loads(containers.ok("agents", "list", "--format", "json"))
    drained = containers.done("agents", "drain", agent["name"], "--evict")
    assert "To be stopped once saved: 1 run." in drained.stderr
    containers.wait_for("contained", "QUEUED")
    containers.ok("agents", "drain", agent["name"], "--undo")
    begin, reached = continuation(containers, "contained", 2)
    assert (begin % 60, begin >= 120) == (0, True)
    assert reached - begin < 60
    (first, _) = detail(containers, "contained")["runs"]
    assert first["verdict"]["reason"] == "DRAINED"
    containers.ok("jobs", "cancel", "contained")
    containers.wait_for("contained", "CANCELLED")
