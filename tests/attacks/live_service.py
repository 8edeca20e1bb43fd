"""An attacked service with a job that prints numbered lines, for attacks over the network."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attacks.service import AttackedService

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


class LiveService(AttackedService):
    """Its only job is `job`, of the admin."""

    def __init__(self, root: Path, stack: ExitStack, server: tuple[str, ...]) -> None:
        (root / "modules").mkdir()
        (root / "tmp").mkdir()
        (root / "modules" / "counting.py").write_text(PROGRAM.format(stop=str(root / "stop")))
        agent = ["--runtime", "process", "--one-user", "--memory-gb", "16", "--usage-every", "0"]
        agent += ["--replica-env", f"PYTHONPATH={root / 'modules'}"]
        temporary = {"TMPDIR": str(root / "tmp")}
        super().__init__(root, stack, ("submitter",), agent, ("--one-user", *server), temporary)
        self.port = urlsplit(self.url).port or 0

    def kill_server(self) -> None:
        self.programs.end("server", signal.SIGKILL)

    def begin(self) -> None:
        """Start the agent and submit the job, which prints lines until `finish`."""
        self.start_agent()
        self.submit("admin", "job", pythonModule="counting")
        self.until(lambda: "line 1" in self.log("admin", "job"))

    def finish(self) -> str:
        """The state in which the job ends."""
        (self.root / "stop").touch()
        return str(self.end("admin", "job")["state"])

    def get(self, path: str) -> dict[str, Any]:
        answer = self.clients["admin"].get(path)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def memory_mb(self) -> float:
        """Resident memory of the server."""
        pages = int(Path(f"/proc/{self.programs.pid('server')}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.programs.pid('server')}/fd").iterdir()))

    def files(self) -> set[str]:
        """The files and directories of all, without the state of the agent and what has a name of its own: a job's
        files, and packages with the mark of their project."""
        files: set[str] = set()
        for place, directories, names in os.walk(self.root):  # which skips what is gone by then
            here = Path(place).relative_to(self.root)
            if here == Path():
                directories[:] = [name for name in directories if name not in ("agent", "jobs")]
            for path in (here / name for name in (*directories, *names)):
                is_a_jobs = path.parts[:3] == ("data", "logs", "p")
                is_a_package = path.parts[:2] == ("data", "staging") and len(path.name) == 64
                if not (is_a_jobs or is_a_package):
                    files.add(str(path))
        return files


@contextmanager
def live_service(root: Path, *server: str) -> Iterator[LiveService]:
    with ExitStack() as stack:
        yield LiveService(root, stack, server)
