"""The demo's job, against the same training by hand."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path

from benchmarks.jobs.service import TRAINYARD, JobService, free_ports, running
from benchmarks.rows import LeftOut, Row, Samples, interleaved

_ROOT = Path(__file__).parents[2]
_TEMPLATE = _ROOT / "trainer_template"
_CONFIG = _ROOT / "configs" / "quickstart.yaml"
_TASKS = ("chief", "worker")
_PROGRAM = ("--epochs", "5")
_numbers = count()


def _demo(quick: bool) -> Samples:
    if find_spec("jax") is None or find_spec("sklearn") is None:
        raise LeftOut("The demo's environment is not installed: `make demo` installs it.")
    with running("--runtime", "process") as service:
        by_hand = partial(_by_hand, service.environment)
        return interleaved(partial(_job, service), by_hand, 1 if quick else 3, "s", is_difference=True)


def _job(service: JobService) -> float:
    """Seconds of the command that submits the job and follows it."""
    job = f"demo_{next(_numbers)}"
    submit = (TRAINYARD, "jobs", "submit", "training", job, "--config", str(_CONFIG), "--stream-logs")
    package = ("--package-path", str(_TEMPLATE / "trainer"), "--", *_PROGRAM)
    return _seconds([[*submit, *package]], [service.environment], service.directory)


def _by_hand(environment: Mapping[str, str]) -> float:
    """Seconds of a chief and a worker, each pinned to its share of the CPUs."""
    cluster = {
        task: [f"127.0.0.1:{port}"] for task, port in zip(_TASKS, free_ports(len(_TASKS)), strict=True)
    }
    cpus = sorted(os.sched_getaffinity(0))
    share = max(len(cpus) // len(_TASKS), 1)
    with tempfile.TemporaryDirectory() as job_dir:
        commands, environments = [], []
        for number, task in enumerate(_TASKS):
            mine = (cpus[number * share :] or cpus)[:share]
            program = (sys.executable, "-m", "trainer.task", "--job-dir", job_dir, *_PROGRAM)
            pin = [shutil.which("taskset") or "taskset", "-c", ",".join(map(str, mine))]
            commands.append([*pin, *program])
            place = {"cluster": cluster, "task": {"type": task, "index": 0}, "environment": "cloud"}
            environments.append({**environment, "TF_CONFIG": json.dumps(place), "PYTHONUNBUFFERED": "1"})
        return _seconds(commands, environments, _TEMPLATE)


def _seconds(
    commands: Sequence[Sequence[str]], environments: Sequence[Mapping[str, str]], directory: Path
) -> float:
    """From the start of all to the end of the last."""
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        started = [
            subprocess.Popen(command, env=environment, cwd=directory, stdout=output, stderr=output)
            for command, environment in zip(commands, environments, strict=True)
        ]
        codes = [process.wait() for process in started]
        took = time.perf_counter() - began
        if any(codes):
            output.seek(0)
            raise RuntimeError(f"The training failed:\n{output.read().decode(errors='replace')[-4000:]}")
        return took


ROWS = (
    Row(
        "demo",
        "the job of `make demo`, its content seen before",
        "the same training by hand, pinned",
        1.0,
        _demo,
        bound=(
            "the start of the command, setuptools, which packages the trainer each time, and server and "
            "agent beside a training that fills both cores. Tried: the environment of the packages is "
            "kept, so that nothing is installed"
        ),
        in_quick=False,
    ),
)
