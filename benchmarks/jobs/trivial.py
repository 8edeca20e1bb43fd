"""Many short jobs: programs that print a word, two at a time, beside the same programs started by hand."""

import subprocess
import sys
import time
from functools import partial
from itertools import count

from benchmarks.rows import Row, Samples, interleaved
from benchmarks.service import Service, cpu_s, run_code, running
from benchmarks.tools import wait_for

_REPORTS = """lr = 0; print('{"step": 1, "loss": 0.5}')"""
"""A program that takes `--lr VALUE`, which timeit runs as two further statements."""
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


def _jobs(service: Service, jobs: int) -> float:
    """Jobs per second, from the first submission to the last end."""
    began = time.perf_counter()
    for _ in range(jobs):
        _submit(service, run_code(_REPORTS))
    wait_for(partial(_is_over, service), "The jobs do not end.", pause_s=0.1)
    return jobs / (time.perf_counter() - began)


def _by_hand(programs: int) -> float:
    """Programs per second, two at a time."""
    command = [sys.executable, "-m", "timeit", "-n1", "-r1", _REPORTS]
    began = time.perf_counter()
    for _ in range(programs // 2):
        pair = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
        for process in pair:
            process.wait()
    return programs / (time.perf_counter() - began)


def _rate(quick: bool) -> Samples:
    jobs = 20 if quick else 100
    with running() as service:
        return interleaved(partial(_jobs, service, jobs), partial(_by_hand, jobs), 1 if quick else 3, "jobs/s")


def _trial(quick: bool) -> Samples:
    """CPU seconds of server, agent and supervisors for each trial of a study."""
    with running() as service:

        def used() -> float:
            before = cpu_s(service.server) + _agents(service)
            _submit(service, {"hyperparameters": _SWEEP, **run_code(_REPORTS)})
            wait_for(partial(_is_over, service), "The study does not end.", pause_s=0.5)
            if list(service.client.list_jobs("state:FAILED", limit=1)):
                raise RuntimeError("A study has failed.")
            return (cpu_s(service.server) + _agents(service) - before) / _TRIALS

        measured = [used() for _ in range(2 if quick else 4)][1:]
        return Samples(measured, [1.0] * len(measured), "s of CPU")


def _agents(service: Service) -> float:
    """CPU seconds of the agent, of the processes that it has now, and of its children that have ended."""
    times = service.agent.cpu_times()
    living = sum(cpu_s(child) for child in service.agent.children(recursive=True))
    return float(times.user + times.system + times.children_user + times.children_system + living)


_BOUND = (
    "Python in the server: half of it SQLAlchemy, for nine transactions and thirty reads of a job. Tried: what follows "
    "from a report is decided in its transaction, supervisors are forked, a log that starts is not asked for"
)

ROWS = (
    Row(
        "short-jobs",
        "short jobs (`print`) on two cores: submission to the last end",
        "the same programs by hand, two at a time",
        20,
        _rate,
        bound=_BOUND,
        is_rate=True,
        is_figure=True,
        in_quick=False,
    ),
    Row(
        "trial-cpu",
        f"a trial of a study of {_TRIALS} that prints a word: CPU of server, agent and supervisor",
        "1 s",
        0.1,
        _trial,
        bound=_BOUND,
        is_figure=True,
        in_quick=False,
    ),
)
