"""A service of many people under attack: the real server and agent, and people who submit jobs by the API."""

import io
import os
import signal
import tarfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from beds.programs import Programs
from beds.token_files import long_token
from beds.waiting import until

_ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


class AttackedService:
    """Its files are below `root`. Each of `people` is a submitter of that name; there is an admin. `server` and `agent`
    are words of their command lines, `environment` and `umask` those of the agent."""

    def __init__(
        self,
        root: Path,
        stack: ExitStack,
        people: Sequence[str],
        agent: Sequence[str],
        server: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        umask: int = 0o022,
    ) -> None:
        self.root = root
        self.state = root / "agent"
        self.jobs = root / "jobs"
        own = {"HOME": os.environ["HOME"], **(environment or {})}
        self.programs = stack.enter_context(Programs(root, environment=own).ending())
        self._server, self._agent, self._umask = server, agent, umask
        self._roles = {"agent": "agent", "admin": "admin", **{name: f"submitter:{name}" for name in people}}
        stack.callback(self.stop_all)
        self.start_server()
        self.url = self.programs.url
        self.clients = {name: stack.enter_context(self._client(name)) for name in ("admin", *people)}

    def start_server(self) -> None:
        """Returns once it answers, at the same address as before."""
        self.programs.server("--default-job-dir", str(self.jobs), *self._server, roles=self._roles)

    def start_agent(self) -> None:
        self.programs.agent(*self._agent, umask=self._umask)

    def kill_agent(self) -> None:
        self.programs.end("agent", signal.SIGKILL)

    def stop_all(self) -> None:
        """Kill the agent, and stop everything that it has started."""
        if self.state.exists():
            self.programs.stop_agent()

    def submit(self, person: str, job_id: str, packages: Sequence[bytes] = (), **training_input: Any) -> None:
        uris = []
        for content in packages:
            path = f"/upload/trainyard/v1/projects/p/packages/{job_id}-1.tar.gz"
            staged = self.clients[person].post(path, content=content)
            assert staged.is_success, staged.text
            uris.append(staged.json()["uri"])
        given = {"scaleTier": "CUSTOM", "masterType": "local-1", "packageUris": uris, **training_input}
        job = {"jobId": job_id, "trainingInput": given}
        answer = self.clients[person].post("/v1/projects/p/jobs", json=job)
        assert answer.status_code == 200, answer.text

    def set_secret(self, name: str, value: str) -> None:
        path = f"/trainyard/v1/projects/p/secrets/{name}"
        self.clients["admin"].put(path, json={"value": value}).raise_for_status()

    def cancel(self, person: str, job_id: str) -> None:
        self.clients[person].post(f"/v1/projects/p/jobs/{job_id}:cancel").raise_for_status()

    def job(self, person: str, job_id: str) -> dict[str, Any]:
        job: dict[str, Any] = self.clients[person].get(f"/v1/projects/p/jobs/{job_id}").json()
        return job

    def is_placed(self, person: str, job_id: str) -> bool:
        return bool(self.job(person, job_id)["state"] != "QUEUED")

    def end(self, person: str, job_id: str) -> dict[str, Any]:
        """The job, once it has ended."""
        self.until(lambda: self.job(person, job_id)["state"] in _ENDED)
        return self.job(person, job_id)

    def lines(self, person: str, job_id: str) -> list[str]:
        """All lines of a job's log, with their times and replicas."""
        path = f"/trainyard/v1/projects/p/jobs/{job_id}/logs/download"
        return self.clients[person].get(path).text.splitlines()

    def log(self, person: str, job_id: str) -> list[str]:
        """The texts of its replicas' lines."""
        lines = [line.split(" ", 2) for line in self.lines(person, job_id)]
        return [line[2] for line in lines if len(line) == 3 and "/" in line[1]]

    def until(self, holds: Callable[[], object]) -> None:
        until(holds, lambda: self.programs.log_of("server")[-5000:] + self.programs.log_of("agent")[-5000:])

    def _client(self, name: str) -> httpx.Client:
        authorization = {"Authorization": f"Bearer {long_token(name)}"}
        return httpx.Client(base_url=self.url, headers=authorization, timeout=60, trust_env=False)


def package(name: str, **files: str) -> bytes:
    """A source distribution with these modules."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for module, text in files.items():
            info = tarfile.TarInfo(f"{name}-1/{module}.py")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()
