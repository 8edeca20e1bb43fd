"""The demo's job, against the same training by hand."""

import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from itertools import count

from benchmarks.rows import LeftOut, Row, Samples, interleaved
from benchmarks.service import TRAINYARD, Service, running
from benchmarks.training.processes import ROOT, Process, tf_configs

_PROGRAM = ("--epochs", "5")
_numbers = count()


def _demo(quick: bool) -> Samples:
    if find_spec("jax") is None or find_spec("sklearn") is None:
        raise LeftOut("The demo's environment is not installed: `make demo` installs it.")
    with running() as service:
        return interleaved(partial(_job, service), _by_hand, 1 if quick else 3, "s", is_difference=True)


def _job(service: Service) -> float:
    """Seconds of the command that submits the job and follows it."""
    config = ("--config", str(ROOT / "configs" / "quickstart.yaml"), "--stream-logs")
    package = ("--package-path", str(ROOT / "trainer_template" / "trainer"), "--", *_PROGRAM)
    submit = [TRAINYARD, "jobs", "submit", "training", f"demo_{next(_numbers)}", *config, *package]
    began = time.perf_counter()
    done = subprocess.run(
        submit, env=service.environment, cwd=service.directory, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"The training failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return time.perf_counter() - began


def _by_hand() -> float:
    """Seconds of a chief and a worker, each pinned to its share of the CPUs."""
    cpus = sorted(os.sched_getaffinity(0))
    share = max(len(cpus) // 2, 1)
    with tempfile.TemporaryDirectory() as job_dir, ExitStack() as stack:
        program = ("-m", "trainer.task", "--job-dir", job_dir, *_PROGRAM)
        began = time.perf_counter()
        processes = [
            stack.enter_context(Process(program, (cpus[number * share :] or cpus)[:share], config))
            for number, config in enumerate(tf_configs(2))
        ]
        for process in processes:
            process.wait()
        return time.perf_counter() - began


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
