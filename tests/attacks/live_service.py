"""A server and an agent as processes, with a job that prints numbered lines, for attacks over the network."""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from beds.token_files import long_token, write_token
from beds.waiting import until
from chaos.service.services import AGENT_KNOBS, SERVER_KNOBS, Forge, Service
from support.addresses import free_ports

ROLES = ("admin", "submitter", "agent")
JOB = "/trainyard/v1/projects/p/jobs/job"
PROGRAM = """
import pathlib, time
number = 0
while not pathlib.Path({stop!r}).exists():
    number += 1
    print(f"line {{number}}", flush=True)
    time.sleep(0.01)
print(f"ended after {{number}}", flush=True)
"""


def bearer(role: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {long_token(role)}"}


class LiveService:
    """The server can be killed and started again on the same directory and port."""

    def __init__(self, root: Path, forge: Forge, knobs: Mapping[str, Any]) -> None:
        self.root = root
        (self.port,) = free_ports(1)
        (root / "modules").mkdir()
        (root / "tmp").mkdir()
        (root / "modules" / "counting.py").write_text(PROGRAM.format(stop=str(root / "stop")))
        for role in ROLES:
            write_token(root / f"{role}-token", long_token(role))
        url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=url, headers=bearer("admin"), timeout=60, trust_env=False)
        options = ["--data-dir", str(root / "data"), "--port", str(self.port), "--one-user"]
        options += ["--default-job-dir", str(root / "jobs")]
        for role in ROLES:
            options += ["--token-file", f"{role}={root / f'{role}-token'}"]
        self.server = self._service(forge, "server", options, {**SERVER_KNOBS, **knobs})
        self.state = ["--state-dir", str(root / "agent")]
        options = [
            *self.state,
            "--server",
            url,
            "--token-file",
            str(root / "agent-token"),
            "--memory-gb",
            "16",
        ]
        options += ["--runtime", "process", "--one-user", "--usage-every", "0"]
        options += ["--replica-env", f"PYTHONPATH={root / 'modules'}"]
        self.agent = self._service(forge, "agent", options, AGENT_KNOBS)
        self.cleaner = self._service(forge, "agent", [*self.state, "--stop-all", "--grace", "0.1"], {})
        self.start_server()

    def start_server(self) -> None:
        """Returns once it answers."""
        self.server.start()
        self.until(self.answers)

    def kill_server(self) -> None:
        assert self.server.stop(signal.SIGKILL) == -signal.SIGKILL

    def answers(self) -> bool:
        try:
            return self.client.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def submit(self) -> None:
        """Start the agent and submit the job `job`, which prints lines until `finish_job`."""
        self.agent.start()
        training_input = {"scaleTier": "CUSTOM", "masterType": "local-1", "pythonModule": "counting"}
        body = {"jobId": "job", "trainingInput": training_input}
        answer = self.client.post("/v1/projects/p/jobs", json=body)
        assert answer.status_code == 200, answer.text
        self.until(lambda: any("line 1" in line for line in self.lines()))

    def finish_job(self) -> str:
        """The state in which it ends."""
        (self.root / "stop").touch()
        self.until(lambda: "endTime" in self.get("/v1/projects/p/jobs/job"))
        return str(self.get("/v1/projects/p/jobs/job")["state"])

    def lines(self) -> list[str]:
        """The lines of the job's log."""
        return self.client.get(f"{JOB}/logs/download").text.splitlines()

    def get(self, path: str) -> dict[str, Any]:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def memory_mb(self) -> float:
        """Resident memory of the server."""
        pages = int(Path(f"/proc/{self.server.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.server.pid}/fd").iterdir()))

    def files(self) -> set[str]:
        """The files and directories of all, without the state of the agent and what has a name of its own: a job's
        files, and packages with the mark of their project."""
        found: set[str] = set()
        for place, directories, files in os.walk(self.root):  # which skips what is gone by then
            here = Path(place).relative_to(self.root)
            if here == Path():
                directories[:] = [name for name in directories if name not in ("agent", "jobs")]
            for path in (here / name for name in (*directories, *files)):
                is_a_jobs = path.parts[:3] == ("data", "logs", "p")
                is_a_package = path.parts[:2] == ("data", "staging") and len(path.name) == 64
                if not (is_a_jobs or is_a_package):
                    found.add(str(path))
        return found

    def until(self, holds: Callable[[], object]) -> None:
        until(holds, lambda: self.server.log.read_text()[-5000:])

    def _service(self, forge: Forge, kind: str, options: list[str], knobs: Any) -> Service:
        name = f"{kind}-{len(options)}"
        return Service(forge, kind, name, options, self.root, knobs, {"TMPDIR": str(self.root / "tmp")})


@contextmanager
def live_service(root: Path, knobs: Mapping[str, Any] | None = None) -> Iterator[LiveService]:
    forge = Forge()
    try:
        service = LiveService(root, forge, knobs or {})
        try:
            yield service
        finally:
            service.client.close()
            if service.agent.pid:
                service.agent.kill()
                service.cleaner.start()
                service.until(lambda: forge.status(service.cleaner.pid) is not None)
    finally:
        forge.close()
