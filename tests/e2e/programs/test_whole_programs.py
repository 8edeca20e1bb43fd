"""Whole programs of public shapes (tests/programs/whole), unchanged, as processes and in containers."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from beds.engines import Engine
from beds.programs import BIN
from beds.waiting import until
from e2e.harness import REPOSITORY, Service, local, started

WHOLE = REPOSITORY / "tests" / "programs" / "whole"
INSIDE = "/opt/frameworks"

pytestmark = [pytest.mark.e2e, pytest.mark.frameworks]


@dataclass(frozen=True, slots=True)
class Whole:
    """A program: the words of its submission in the directory of all, the number of its replicas, whether it takes the
    frameworks that are installed, and a line of its log."""

    words: Sequence[str]
    prints: str
    replicas: int = 1
    frameworks: bool = False


HF = ("--output_dir", "out", "--use_cpu", "True", "--max_steps", "4", "--report_to", "none", "--save_strategy", "no")
PROGRAMS = {
    "nanogpt": Whole(
        ("--package-path", "nanogpt", "--module-name", "run.sh", "--", "--device=cpu"), "done, world size 1", 1, True
    ),
    "nanogpt_ddp": Whole(
        ("--package-path", "nanogpt", "--module-name", "run.sh", "--", "--device=cpu", "--backend=gloo"),
        "done, world size 2",
        2,
        True,
    ),
    "detr": Whole(
        ("--package-path", "detr", "--module-name", "main.py", "--", "--device", "cpu", "--output_dir", "out"),
        "Training time of world 2",
        2,
        True,
    ),
    "lightning": Whole(("--package-path", "lightning_nodes.py"), "rank 1 of 2: fit done", 2, True),
    "hugging_face": Whole(("--package-path", "hf_trainer.py", "--", *HF), "process 1 of 2", 2, True),
    "accelerate": Whole(("--package-path", "accelerated.py", "--", "--cpu"), "2 processes gathered 2", 2, True),
    "keras": Whole(("--package-path", "keras_parallel", "--module-name", "train"), "process 1 of 2, 2 devices", 2),
    "hydra": Whole(
        ("--package-path", "hydra_src", "--module-name", "digits.train", "--", "lr=0.05", "model=large"),
        "epoch 3/3 - loss: 47.0459",
    ),
    "poetry": Whole(
        ("--package-path", "poetry_project/digits", "--module-name", "digits.train", "--", "--epochs", "4"),
        "version 1.2.0",
    ),
    "notebook": Whole(("--package-path", "digits.ipynb"), "done XXX"),
    "reinforcement": Whole(("--package-path", "reinforce", "--module-name", "train"), "goes right: True"),
}


@pytest.fixture
def processes(frameworks_python: Path, tmp_path: Path) -> Iterator[Service]:
    """A service whose agent's Python has the frameworks."""
    yield from started(tmp_path, "--python", str(frameworks_python))


@pytest.fixture
def containers(engine: Engine, frameworks_python: Path, tmp_path: Path) -> Iterator[Service]:
    """A service with containers, which have the frameworks as a mount."""
    packages = next(frameworks_python.parents[1].glob("lib/python3.*/site-packages"))
    mounts = tmp_path / "mounts.yaml"
    mounts.write_text(yaml.safe_dump({"mounts": [{"name": "frameworks", "path": str(packages)}]}))
    flags = ("--mounts", str(mounts), "--container-user", "image")
    for service in started(tmp_path / "service", *flags, runtime="auto", environment=engine.environment):
        yield service
        until(lambda: not engine.remaining(), "the networks of runs to be removed")


def test_whole_programs_run_unchanged_as_processes(processes: Service) -> None:
    _check(processes, {})


@pytest.mark.containers
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the base image has Python 3.11")
def test_whole_programs_run_unchanged_in_containers(containers: Service, engine: Engine) -> None:
    image = {"imageUri": engine.base_image}
    _check(containers, {"masterConfig": image, "workerConfig": image})


def _check(service: Service, images: dict[str, dict[str, str]]) -> None:
    """Run all programs, and fail with those that did not do what they do by hand."""
    work = service.work / "whole"
    shutil.copytree(WHOLE, work)
    # A lock has the addresses of an index, so it is made here.
    locking = {**os.environ, **service.environment}
    subprocess.run([BIN / "uv", "lock", "--quiet"], cwd=work / "hydra_src", env=locking, check=True)
    for name, program in PROGRAMS.items():
        gang = local(workers=program.replicas - 1)
        chosen = {field: image for field, image in images.items() if field == "masterConfig" or program.replicas > 1}
        config = service.config(f"{name}.yaml", pythonModule=None, **gang, **chosen)
        words = list(program.words)
        at = words.index("--") if "--" in words else len(words)
        words[at:at] = ["--config", str(config)]
        if images and program.frameworks:
            words[at:at] = ["--mount", f"frameworks:{INSIDE}", "--env", f"PYTHONPATH={INSIDE}"]
        done = service.run("jobs", "submit", "training", name, *words, cwd=work)
        assert done.returncode == 0, done.stderr
    wrong = {}
    for name, program in PROGRAMS.items():
        state = service.wait_for(name, "SUCCEEDED", "FAILED", timeout=900)
        log = service.log(name)
        if state != "SUCCEEDED" or program.prints not in log:
            wrong[name] = f"{state}: {service.value(name, 'errorMessage')}\n{log}"
    if wrong:
        pytest.fail("\n\n".join(f"{name}: {text}" for name, text in wrong.items()), pytrace=False)
