"""A server and an agent of this machine, whose replicas are processes of the file `program.py` of a directory."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.filled import TOKEN, started
from trainyard_server.storage.logs import index

PROJECT = "p0"
_PATIENCE_S = 180.0


class BenchmarkError(Exception):
    """The measurement failed."""


@dataclass(frozen=True)
class LocalService:
    """Processes of a service. `modules`: the directory of the modules that jobs can name."""

    client: httpx.Client
    server: psutil.Process
    agent: psutil.Process
    data_dir: Path

    @property
    def environment(self) -> dict[str, str]:
        """Environment of commands of the command line."""
        return {
            **os.environ,
            "TRAINYARD_SERVER": str(self.client.base_url),
            "TRAINYARD_TOKEN": TOKEN,
            "TRAINYARD_PROJECT": PROJECT,
        }

    def submit(self, job: str, module: str, args: Sequence[str], replicas: int = 1) -> None:
        """Submit a job of replicas that run a module, and wait until all of them run."""
        training_input: dict[str, object] = {
            "scaleTier": "CUSTOM",
            "masterType": "local-1",
            "pythonModule": module,
            "args": list(args),
        }
        if replicas > 1:
            training_input |= {"workerType": "local-1", "workerCount": replicas - 1}
        self.client.post(
            f"/v1/projects/{PROJECT}/jobs", json={"jobId": job, "trainingInput": training_input}
        ).raise_for_status()
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            detail = self.client.get(f"/trainyard/v1/projects/{PROJECT}/jobs/{job}").raise_for_status().json()
            states = [replica["state"] for run in detail["runs"] for replica in run["replicas"]]
            if len(states) == replicas and set(states) == {"RUNNING"}:
                return
            if time.monotonic() > deadline or detail["job"]["state"] in ("FAILED", "CANCELLED", "SUCCEEDED"):
                raise BenchmarkError(f"The job {job} does not run: {detail['job']}")
            time.sleep(0.1)

    def lines(self, job: str) -> int:
        """Number of lines of a job's log that the server has; its disk is asked, and not the server."""
        try:
            path = self.data_dir / "logs" / PROJECT / job / "segment.index"
            return path.stat().st_size // index.SIZE
        except FileNotFoundError:
            return 0

    def cpu_s(self) -> float:
        """CPU seconds of server, agent and supervisors so far."""
        supervisors = [
            child for child in self.agent.children() if "supervisor.py" in " ".join(child.cmdline())
        ]
        return sum(sum(process.cpu_times()[:2]) for process in (self.server, self.agent, *supervisors))


@contextmanager
def local_service(directory: Path, modules: Path, data_dir: Path | None = None) -> Iterator[LocalService]:
    """A service for the time of the context; with the jobs of `data_dir` if it is given."""
    data_dir = data_dir or directory / "data"
    with ExitStack() as stack:
        server = stack.enter_context(started(data_dir, directory, agents=True))
        program = [sys.executable, "-m", "trainyard_agent", "--state-dir", str(directory / "agent")]
        options = [
            *("--server", str(server.client.base_url), "--token-file", str(directory / "agent-token")),
            *("--runtime", "process", "--one-user", "--replica-env", f"PYTHONPATH={modules}"),
        ]
        with (directory / "agent.log").open("wb") as log:
            agent = subprocess.Popen([*program, *options], stdout=log, stderr=log)
        stack.callback(_end, agent, [*program, "--stop-all", "--grace", "1"])
        yield LocalService(server.client, psutil.Process(server.pid), psutil.Process(agent.pid), data_dir)


def _end(agent: "subprocess.Popen[bytes]", stop_all: list[str]) -> None:
    """End the agent, then what it has left running."""
    agent.terminate()
    agent.wait()
    subprocess.run(stop_all, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
