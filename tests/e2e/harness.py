"""End-to-end harness: a local service started and driven with the installed program."""

import os
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from beds.programs import BIN, Programs
from beds.token_files import long_token
from beds.waiting import PATIENCE_S, until
from support.addresses import free_ports
from trainyard_cli.client import Client
from trainyard_cli.local.state import LocalState
from trainyard_cli.settings import DEFAULT_PROJECT, Server
from trainyard_protocol.answers.log_views import LogEntry
from trainyard_protocol.errors import NotFound

REPOSITORY = Path(__file__).parents[2]


class Service(Programs):
    """A local service in a state directory of its own."""

    command = ("trainyard",)

    def __init__(self, root: Path, programs: Path = BIN) -> None:
        super().__init__(root)
        self.root = root
        self.project = DEFAULT_PROJECT
        self.state_dir = root / "state"
        self.work = root / "work"
        self.work.mkdir(parents=True)
        self.environment |= {
            "HOME": os.environ["HOME"],
            "TRAINYARD_STATE_DIR": str(self.state_dir),
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "COLUMNS": "200",
        }

    def run(self, *words: str, timeout: float = 180, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return super().run(*words, timeout=timeout, cwd=cwd or self.work)

    def train(self, job: str, *words: str, cwd: Path | None = None) -> str:
        """Submit, follow to the end, assert success and return the streamed log (`submit` writes it to stderr)."""
        submit = ("jobs", "submit", "training", job, "--stream-logs")
        return self.done(*submit, *words, timeout=300, cwd=cwd).stderr

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["trainyard", *words],
            env=self.environment,
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def program(self, source: str, name: str = "prog") -> Path:
        """Write a package `<name>` with module `<name>.task` into the working directory."""
        package = self.work / name
        package.mkdir(exist_ok=True)
        (package / "__init__.py").touch()
        (package / "task.py").write_text(textwrap.dedent(source))
        return package

    def config(self, name: str = "config.yaml", **training_input: Any) -> Path:
        """Write a config for `program` with these fields; None removes a field."""
        fields = {"pythonModule": "prog.task", **training_input}
        path = self.work / name
        given = {field: value for field, value in fields.items() if value is not None}
        path.write_text(yaml.safe_dump({"trainingInput": given}))
        return path

    def value(self, job: str, path: str) -> str:
        """One field of the v1 job."""
        return self.ok("jobs", "describe", job, "--format", f"value({path})").strip()

    def job_dir(self, job: str) -> Path:
        """The job's directory, which the service chose if the job has no jobDir."""
        return Path(self.ok("jobs", "describe", job, "--all", "--format", "value(job_dir)").strip())

    def state(self, job: str) -> str:
        """The job's state; "" while there is no such job. In this process: a command for each poll fills a core."""
        with self.client() as client:
            try:
                return str(client.get_job(job)["state"])
            except NotFound:
                return ""

    def wait_for(self, job: str, *states: str, timeout: float = PATIENCE_S) -> str:
        return until(lambda: (s := self.state(job)) in states and s, f"{job} to be {states}", timeout)

    def log(self, job: str) -> str:
        """The lines of the job's log so far, read in this process."""
        with self.client() as client:
            events = client.logs(job, follow=False)
            return "\n".join(event.text for event in events if isinstance(event, LogEntry))

    def wait_for_line(self, job: str, text: str) -> None:
        until(lambda: text in self.log(job), f"{job} to log {text!r}")

    def client(self) -> Client:
        server = LocalState(self.state_dir).server()
        assert server is not None, "`trainyard up` was never run"
        return Client(server, self.project)

    def use_project(self, name: str) -> None:
        """Use another project from now on, and cancel what runs in the one before. A job's name is used once."""
        with self.client() as client:
            jobs = [job["jobId"] for job in client.list_jobs()]
        for job in jobs:
            self.run("jobs", "cancel", job)  # refused for those that have ended
            self.wait_for(job, "SUCCEEDED", "FAILED", "CANCELLED")
        self.project = name
        self.environment["TRAINYARD_PROJECT"] = name

    def processes(self) -> list[psutil.Process]:
        """Processes of this state directory: services, supervisors, replicas."""
        processes = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                environment = process.environ()
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
            mine = str(self.state_dir)
            if process.pid != os.getpid() and (
                any(mine in word for word in words) or any(mine in v for v in environment.values())
            ):
                processes.append(process)
        return processes


class RemoteService(Service):
    """A server that an operator runs, with an agent; `trainyard` uses it as its admin."""

    def __init__(self, root: Path, *server: str, machine_types: dict[str, Any]) -> None:
        super().__init__(root)
        client = root / "client"
        client.mkdir()
        types = root / "types.yaml"
        types.write_text(yaml.safe_dump(machine_types))
        self.environment |= {"TRAINYARD_STATE_DIR": str(client), "HOME": str(client)}
        self.server("--machine-types", str(types), *server, roles={"admin": "admin", "agent": "agent"})
        self.environment |= {"TRAINYARD_SERVER": self.url, "TRAINYARD_TOKEN": long_token("admin")}

    def client(self) -> Client:
        return Client(Server(self.url, long_token("admin")), self.project)


KEEPS_FILES = """
import signal, time
stops = []
signal.signal(signal.SIGTERM, lambda *_: stops.append(1))
params = open("configs/params.yaml").read()
print("has its params", flush=True)
while not stops:
    time.sleep(0.1)
with open("outputs/model", "w") as model:
    model.write(params)
"""


def stop_script_that_keeps_files(service: Service, job: str, config: Path, *words: str) -> None:
    """Run a directory of scripts, and cancel it: then `outputs/model` of its directory is kept in the job's."""
    source = service.work / job
    (source / "configs").mkdir(parents=True, exist_ok=True)
    (source / "outputs").mkdir(exist_ok=True)
    (source / "train.py").write_text(KEEPS_FILES)
    (source / "configs" / "params.yaml").write_text("lr: 0.1")
    package = ("--config", str(config), "--package-path", str(source))
    service.ok("jobs", "submit", "training", job, *package, *words)
    service.wait_for_line(job, "has its params")
    service.ok("jobs", "cancel", job)
    service.wait_for(job, "CANCELLED")
    assert "1 file of the working directory, new or changed: " in service.log(job)


def local(workers: int = 0, **fields: Any) -> dict[str, Any]:
    """The training input of a gang of `local-1` replicas."""
    gang = {"scaleTier": "CUSTOM", "masterType": "local-1", **fields}
    return {**gang, "workerType": "local-1", "workerCount": workers} if workers else gang


def started(
    root: Path, *flags: str, runtime: str = "process", environment: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """On ports that no other test gets, also while a server that was killed is away."""
    service = Service(root)
    service.environment |= environment or {}
    state = LocalState(service.state_dir)
    state.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    server, storage = free_ports(2)
    state.save(replace(state.options(), server_port=server, storage_port=storage))
    service.ok("up", "--runtime", runtime, *flags)
    try:
        yield service
    finally:
        service.ok("down")
        orphans = service.processes()
        assert not orphans, f"down left {[(p.pid, p.cmdline()) for p in orphans]}"
