"""Many short jobs: programs that print a word, two at a time, beside the same programs started by hand."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from benchmarks.rows import Row, Samples, interleaved
from benchmarks.service import Service, cpu_s, run_code, running, whole_cpu_s
from benchmarks.tools import RAY, installed, slurm, wait_for

if TYPE_CHECKING:
    from beds.slurm import SlurmBed

REPORTS = """lr = 0; print('{"step": 1, "loss": 0.5}')"""
"""A program that takes `--lr VALUE`, which timeit runs as two further statements."""
_RAY_TASKS = """
import subprocess, sys, time
import ray
count, python, program = int(sys.argv[1]), *sys.argv[2:]
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
command = [python, "-m", "timeit", "-n1", "-r1", program]
start = ray.remote(lambda: subprocess.run(command, capture_output=True).returncode)
ray.get([start.remote() for _ in range(2)])
began = time.perf_counter()
ray.get([start.remote() for _ in range(count)])
print(count / (time.perf_counter() - began))
"""
_TRIALS = 30
_SWEEP = {
    "goal": "MINIMIZE",
    "hyperparameterMetricTag": "loss",
    "algorithm": "RANDOM_SEARCH",
    "maxParallelTrials": 2,
    "maxTrials": _TRIALS,
    "params": [{"parameterName": "lr", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}],
}
_PENDING = "state:QUEUED OR state:PREPARING OR state:RUNNING"
_numbers = count()


def _is_over(service: Service) -> bool:
    return not list(service.client.list_jobs(_PENDING, limit=1))


def _submit(service: Service, job_input: dict[str, object]) -> None:
    gang = {"scaleTier": "CUSTOM", "masterType": "local-1"}
    service.client.create_job({"jobId": f"short_{next(_numbers)}", "trainingInput": {**gang, **job_input}})


def short_jobs(service: Service, jobs: int, pause_s: float = 0.1) -> float:
    """Jobs per second, from the first submission to the last end, for which it asks so often."""
    began = time.perf_counter()
    for _ in range(jobs):
        _submit(service, run_code(REPORTS))
    wait_for(partial(_is_over, service), "The jobs do not end.", pause_s=pause_s)
    return jobs / (time.perf_counter() - began)


def _by_hand(programs: int) -> float:
    """Programs per second, two at a time."""
    command = [sys.executable, "-m", "timeit", "-n1", "-r1", REPORTS]
    began = time.perf_counter()
    for _ in range(programs // 2):
        pair = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
        for process in pair:
            process.wait()
    return programs / (time.perf_counter() - began)


def _rate(quick: bool, against: Callable[[int], float]) -> Samples:
    jobs = 20 if quick else 100
    with running() as service:
        return interleaved(partial(short_jobs, service, jobs), partial(against, jobs), 1 if quick else 3, "jobs/s")


def _rate_beside_ray(quick: bool) -> Samples:
    return _rate(quick, _by_ray)


def _rate_beside_slurm(quick: bool) -> Samples:
    with slurm() as cluster:
        return _rate(quick, partial(_by_slurm, cluster))


def _by_ray(programs: int) -> float:
    """Programs per second that tasks of a Ray of two CPUs start, from the first submission to the last end."""
    python = installed(RAY) / "python"
    quiet = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [str(python), "-c", _RAY_TASKS, str(programs), sys.executable, REPORTS]
    return float(subprocess.check_output(command, env=quiet, text=True, stderr=subprocess.DEVNULL).split()[-1])


def _by_slurm(cluster: "SlurmBed", programs: int) -> float:
    """Programs per second of an array of which two run at a time, from its submission to its end."""
    program = shlex.join([sys.executable, "-m", "timeit", "-n1", "-r1", REPORTS])
    array = [f"--array=1-{programs}%2", "--output=/dev/null", "--mem=100", f"--wrap={program}"]
    began = time.perf_counter()
    cluster.run("sbatch", "--wait", *array)
    return programs / (time.perf_counter() - began)


def _trial(quick: bool) -> Samples:
    """CPU seconds of server, agent, supervisor and program for each trial of a study."""
    with running() as service:

        def used() -> float:
            before = cpu_s(service.server) + whole_cpu_s(service.agent)
            _submit(service, {"hyperparameters": _SWEEP, **run_code(REPORTS)})
            wait_for(partial(_is_over, service), "The study does not end.", pause_s=0.5)
            if list(service.client.list_jobs("state:FAILED", limit=1)):
                raise RuntimeError("A study has failed.")
            return (cpu_s(service.server) + whole_cpu_s(service.agent) - before) / _TRIALS

        measured = [used() for _ in range(2 if quick else 4)][1:]
        return Samples(measured, [1.0] * len(measured), "s of CPU")


_BOUND = (
    "Python in the server, a third of it SQLAlchemy, for 45 statements and 5 transactions of a job (310 and 19 once). "
    "Tried: what follows from a report is decided in its transaction, supervisors are forked, a log that starts is not "
    "asked for, an end plans no more than it starts"
)

ROWS = (
    Row(
        "short-jobs",
        "short jobs (`print`) on two cores: submission to the last end",
        "the same programs by hand, two at a time",
        20,
        partial(_rate, against=_by_hand),
        bound=_BOUND,
        is_rate=True,
        is_figure=True,
        in_quick=False,
    ),
    Row(
        "short-jobs-ray",
        "short jobs (`print`) on two cores: submission to the last end",
        "tasks of Ray on two CPUs, each of which starts such a program; neither durable nor with a log each",
        0.5,
        _rate_beside_ray,
        bound=_BOUND,
        is_rate=True,
        in_quick=False,
    ),
    Row(
        "short-jobs-slurm",
        "short jobs (`print`) on two cores: submission to the last end",
        "an array of Slurm, two at a time, `sched_interval=1`",
        1,
        _rate_beside_slurm,
        bound=_BOUND,
        is_rate=True,
        in_quick=False,
    ),
    Row(
        "trial-cpu",
        f"a trial of a study of {_TRIALS} that prints a word: CPU of server, agent, supervisor and program",
        "1 s",
        0.1,
        _trial,
        bound=_BOUND,
        is_figure=True,
        in_quick=False,
    ),
)
