"""A service of its own (`trainyard up`), and jobs on it: those that print the time of their first instruction, and
those that run until the service is stopped."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psutil

from benchmarks.filled import fill
from benchmarks.tools import wait_for
from trainyard_cli.client import Client
from trainyard_cli.local.options import ProcessName
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import DEFAULT_PROJECT
from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_server.storage.logs import index

REPLICAS = 4
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
PRINT_TIME = "import time; print(time.time_ns(), flush=True); time.sleep(0.5)"
"""A program: its first instruction says when it is. It ends later, since the end of the primary replica stops those
that have not begun."""

_PAUSE_S = 0.3  # until what the job before has left is removed
_numbers = count()


def run_code(code: str) -> dict[str, Any]:
    """The training input of a program, as an argument of a module that every Python has."""
    return {"pythonModule": "timeit", "args": ["-n1", "-r1", code]}


class Service:
    """A running service. `directory`: for the benchmark's own files. `environment`: of its commands."""

    def __init__(self, state: LocalState, client: Client, environment: Mapping[str, str]) -> None:
        self.directory = state.root.parent
        self.client = client
        self.environment = environment
        self.server, self.agent = (_process(state, name) for name in ("server", "agent"))
        self._logs = state.root / "server" / "logs"

    def launch(self, training_input: Mapping[str, Any], replicas: int = REPLICAS) -> float:
        """Seconds from the request of a job to the last first instruction. Waits for its end."""
        job = f"launch_{next(_numbers)}"
        time.sleep(_PAUSE_S)
        began = time.time_ns()
        self._submit(job, training_input, replicas)
        return seconds(began, self._finish(job), replicas)

    def output(self, training_input: Mapping[str, Any], replicas: int = REPLICAS) -> list[str]:
        """The lines of a new job, in all its runs, once it has succeeded."""
        job = f"output_{next(_numbers)}"
        time.sleep(_PAUSE_S)
        self._submit(job, training_input, replicas)
        return self._finish(job)

    def run(self, job: str, code: str, replicas: int) -> None:
        """Submit a job of replicas that run a program, and wait until all of them run."""
        self._submit(job, run_code(code), replicas)
        wait_for(lambda: self._is_running(job, replicas), f"The job {job} does not run.")

    def lines(self, job: str) -> int:
        """Number of lines of a job's log that the server has; its disk is asked, and not the server."""
        return index.lines_of(self._logs / DEFAULT_PROJECT / job / "segment.records")

    def end_of_log(self, job: str) -> bytes:
        """The end of a job's log on the server's disk."""
        with (self._logs / DEFAULT_PROJECT / job / "segment").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 100))
            return file.read()

    def cpu_s(self) -> float:
        """CPU seconds of server, agent and supervisors so far."""
        children = self.agent.children(recursive=True)
        supervisors = [child for child in children if "supervisor.py" in " ".join(child.cmdline())]
        return sum(map(cpu_s, (self.server, self.agent, *supervisors)))

    def _submit(self, job: str, training_input: Mapping[str, Any], replicas: int) -> None:
        gang: dict[str, Any] = {"scaleTier": "CUSTOM", "masterType": "local-1"}
        if replicas > 1:
            gang |= {"workerType": "local-1", "workerCount": str(replicas - 1)}
        self.client.create_job({"jobId": job, "trainingInput": {**gang, **training_input}})

    def _is_running(self, job: str, replicas: int) -> bool:
        detail = self.client.detail(job)
        if detail.state in FINAL_JOB_STATES:
            raise RuntimeError(f"The job {job} is {detail.state}.")
        states = [replica.state for run in detail.runs for replica in run.replicas]
        return len(states) == replicas and set(states) == {"RUNNING"}

    def _finish(self, job: str) -> list[str]:
        """Wait for the end of a job, which has to succeed. Returns the lines of its replicas."""
        entries = self.client.logs(job, follow=True)
        lines = [entry.text for entry in entries if isinstance(entry, LogEntry) and entry.task]
        state = self.client.detail(job).state
        if state is not JobState.SUCCEEDED:
            raise RuntimeError(f"{job} is {state}:\n" + "\n".join(lines[-20:]))
        return lines


def cpu_s(process: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    return sum(process.cpu_times()[:2])


def whole_cpu_s(process: psutil.Process) -> float:
    """CPU seconds so far of a process and of all that it has started, with what has ended."""
    return sum(map(_with_ended, (process, *process.children(recursive=True))))


def _with_ended(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:4]))  # of itself, and of its children that have ended
    except psutil.NoSuchProcess:  # its parent has its times
        return 0.0


def seconds(began_ns: int, lines: Sequence[str], replicas: int = REPLICAS) -> float:
    """From then to the last of the times that the replicas have printed."""
    times = [int(line) for line in lines if line.isdecimal()]
    if len(times) != replicas:
        raise RuntimeError(f"{len(times)} of {replicas} replicas have printed their time: {list(lines)[-20:]}")
    return (max(times) - began_ns) / 1e9


@contextmanager
def running(runtime: str = "process", jobs: int = 0, variables: Mapping[str, str] | None = None) -> Iterator[Service]:
    """Start a service, with so many ended jobs and these variables of its environment, and stop it."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        state = LocalState(Path(name) / "state")
        if jobs:
            state.root.mkdir()
            fill(state.root / "server", jobs, queued=0)
        own = {key: value for key, value in os.environ.items() if not key.startswith("TRAINYARD_")}
        own |= {"TRAINYARD_STATE_DIR": str(state.root), **(variables or {})}
        up = [TRAINYARD, "up", "--runtime", runtime]
        subprocess.run(up, env=own, check=True, stdout=subprocess.DEVNULL)
        try:
            server = state.server()
            if server is None:
                raise RuntimeError(f"`trainyard up` has left no server in {state.root}.")
            with Client(server, DEFAULT_PROJECT) as client:
                yield Service(state, client, own)
        finally:
            subprocess.run([TRAINYARD, "down"], env=own, check=True, stdout=subprocess.DEVNULL)


def _process(state: LocalState, name: ProcessName) -> psutil.Process:
    record = state.process(name)
    if record is None:
        raise RuntimeError(f"`trainyard up` has left no {name} in {state.root}.")
    return psutil.Process(record.pid)
