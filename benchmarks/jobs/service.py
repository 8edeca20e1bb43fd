"""A service of its own (`trainyard up`), and jobs whose replicas print the time of their first instruction."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from trainyard_cli.client import Client
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import DEFAULT_PROJECT
from trainyard_protocol.states import FINAL_JOB_STATES, JobState
from trainyard_protocol.views.views import JobDetail, LogEntry

REPLICAS = 4
TRAINYARD = str(Path(sys.executable).with_name("trainyard"))
PRINT_TIME = "import time; print(time.time_ns(), flush=True); time.sleep(0.5)"
"""A program: its first instruction says when it is. It ends later, since the end of the primary replica stops those
that have not begun."""

_PAUSE_S = 0.3  # until what the job before has left is removed
_numbers = count()


class JobService:
    """A running service. `directory`: for the benchmark's own files. `environment`: of its commands."""

    def __init__(self, directory: Path, client: Client, environment: Mapping[str, str]) -> None:
        self.directory = directory
        self.client = client
        self.environment = environment

    def launch(self, training_input: Mapping[str, Any]) -> float:
        """Seconds from the request of a job of REPLICAS to the last first instruction. Waits for its end."""
        job = f"launch_{next(_numbers)}"
        gang = {"scaleTier": "CUSTOM", "masterType": "local-1", "workerType": "local-1"}
        gang["workerCount"] = str(REPLICAS - 1)
        time.sleep(_PAUSE_S)
        began = time.time_ns()
        self.client.create_job({"jobId": job, "trainingInput": {**gang, **training_input}})
        lines = self.finish(job)
        return seconds(began, lines)

    def finish(self, job: str) -> list[str]:
        """Wait for the end of a job, which has to succeed. Returns the lines of its replicas."""
        lines: list[str] = []
        state = None
        for event in self.client.logs(job, follow=True):
            if isinstance(event, LogEntry) and event.task:
                lines.append(event.text)
            elif isinstance(event, JobDetail):
                state = event.state
        if state not in FINAL_JOB_STATES:
            state = self.client.detail(job).state
        if state is not JobState.SUCCEEDED:
            raise RuntimeError(f"{job} is {state}:\n" + "\n".join(lines[-20:]))
        return lines


def seconds(began_ns: int, lines: Sequence[str], replicas: int = REPLICAS) -> float:
    """From then to the last of the times that the replicas have printed."""
    times = [int(line) for line in lines if line.isdecimal()]
    if len(times) != replicas:
        raise RuntimeError(
            f"{len(times)} of {replicas} replicas have printed their time: {list(lines)[-20:]}"
        )
    return (max(times) - began_ns) / 1e9


@contextmanager
def running(*flags: str, **environment: str) -> Iterator[JobService]:
    """Start a service, with these variables, and stop it."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-") as name:
        directory = Path(name)
        state = LocalState(directory / "state")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TRAINYARD_")}
        own = {**inherited, "TRAINYARD_STATE_DIR": str(state.root), **environment}
        subprocess.run([TRAINYARD, "up", *flags], env=own, check=True, stdout=subprocess.DEVNULL)
        try:
            server = state.server()
            if server is None:
                raise RuntimeError(f"`trainyard up` has left no server in {state.root}")
            with Client(server, DEFAULT_PROJECT) as client:
                yield JobService(directory, client, own)
        finally:
            subprocess.run([TRAINYARD, "down"], env=own, check=True, stdout=subprocess.DEVNULL)


def free_ports(number: int) -> list[int]:
    """Ports of loopback that are free now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(number)]
        return [int(probe.getsockname()[1]) for probe in probes]
