"""A service of many people under attack: the real server and agent, and people who submit jobs by the API."""

import io
import socket
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from beds.token_files import long_token, write_token
from beds.waiting import until

DEADLINE_S = 90.0
_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class AttackedService:
    """Its files are below `root`. Each of `people` is a submitter of that name; there is an admin. `agent`,
    `environment` and `umask` are those of its agent: words, variables, umask."""

    def __init__(
        self,
        root: Path,
        stack: ExitStack,
        people: Sequence[str],
        agent: Sequence[str],
        environment: Mapping[str, str],
        umask: int = 0o022,
    ) -> None:
        self.root = root
        self.state = root / "agent"
        self.jobs = root / "jobs"
        self._words, self._environment, self._umask = agent, environment, umask
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = ["--data-dir", str(root / "data"), "--port", str(port), "--default-job-dir", str(self.jobs)]
        roles = {"agent": "agent", "admin": "admin", **{name: f"submitter:{name}" for name in people}}
        for name, role in roles.items():
            words += ["--token-file", f"{role}={write_token(root / f'{name}-token', long_token(name))}"]
        self._log = stack.enter_context((root / "log").open("ab"))
        server = subprocess.Popen([sys.executable, "-m", "trainyard_server", *words], stderr=self._log)
        stack.callback(server.wait)
        stack.callback(server.kill)
        self._clients = {name: stack.enter_context(self._client(name)) for name in ("admin", *people)}
        self.until(self._answers)
        self.start_agent()
        stack.callback(self.stop_all)

    def start_agent(self) -> None:
        connection = ("--server", self.url, "--token-file", str(self.root / "agent-token"))
        command = self._command(*connection, *self._words)
        self._agent = subprocess.Popen(
            command, stderr=self._log, env=dict(self._environment), umask=self._umask
        )

    def kill_agent(self) -> None:
        self._agent.kill()
        self._agent.wait()

    def stop_all(self) -> None:
        self.kill_agent()
        stop = self._command("--stop-all", "--grace", "0.1")
        subprocess.run(stop, check=True, timeout=DEADLINE_S, env=dict(self._environment), stderr=self._log)

    def submit(self, person: str, job_id: str, packages: Sequence[bytes] = (), **training_input: Any) -> None:
        uris = []
        for content in packages:
            path = f"/upload/trainyard/v1/projects/p/packages/{job_id}-1.tar.gz"
            staged = self._clients[person].post(path, content=content)
            assert staged.is_success, staged.text
            uris.append(staged.json()["uri"])
        given = {"scaleTier": "CUSTOM", "masterType": "local-1", "packageUris": uris, **training_input}
        job = {"jobId": job_id, "trainingInput": given}
        answer = self._clients[person].post("/v1/projects/p/jobs", json=job)
        assert answer.status_code == 200, answer.text

    def set_secret(self, name: str, value: str) -> None:
        path = f"/trainyard/v1/projects/p/secrets/{name}"
        self._clients["admin"].put(path, json={"value": value}).raise_for_status()

    def cancel(self, person: str, job_id: str) -> None:
        self._clients[person].post(f"/v1/projects/p/jobs/{job_id}:cancel").raise_for_status()

    def job(self, person: str, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self._clients[person].get(f"/v1/projects/p/jobs/{job_id}").json()
        return found

    def is_placed(self, person: str, job_id: str) -> bool:
        return bool(self.job(person, job_id)["state"] != "QUEUED")

    def end(self, person: str, job_id: str) -> dict[str, Any]:
        """The job, once it has ended."""
        self.until(lambda: self.job(person, job_id)["state"] in _ENDED)
        return self.job(person, job_id)

    def log(self, person: str, job_id: str) -> list[str]:
        """The lines of a job's own."""
        text = self._clients[person].get(f"/trainyard/v1/projects/p/jobs/{job_id}/logs/download").text
        lines = [line.split(" ", 2) for line in text.splitlines()]
        return [line[2] for line in lines if len(line) == 3 and "/" in line[1]]

    def until(self, holds: Callable[[], object]) -> None:
        until(holds, (self.root / "log").read_text)

    def _client(self, name: str) -> httpx.Client:
        authorization = {"Authorization": f"Bearer {long_token(name)}"}
        return httpx.Client(base_url=self.url, headers=authorization, timeout=30)

    def _answers(self) -> bool:
        try:
            return all(client.get("/healthz").status_code == 200 for client in self._clients.values())
        except httpx.TransportError:
            return False

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "trainyard_agent", "--state-dir", str(self.state), *words]


def package(name: str, **files: str) -> bytes:
    """A source distribution with these modules."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for module, text in files.items():
            info = tarfile.TarInfo(f"{name}-1/{module}.py")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()
