"""A server, two agents and the network between them: real processes, and a lease of seconds.

The program of every run writes down when it lives, on a clock that all of them share.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from beds.token_files import long_token, write_token
from beds.waiting import until
from trainyard_agent.host.files import is_locked
from trainyard_agent.lease import watchdog_files
from trainyard_protocol.answers.jobs import JobDetail
from trainyard_protocol.states import JobState

LEASE_S, GRACE_S = 10.0, 2.0
"""An agent tells its replicas to stop after 5.5 s, and kills them after 7.5 s. The server waits 10 s."""

DEADLINE_S = 120.0
ENDED = (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED)

HEARTBEATS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
directory = sys.argv[sys.argv.index("--job-dir") + 1]
file = os.open(f"{directory}/{os.urandom(8).hex()}.beats", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
while not os.path.exists(f"{directory}/finish"):
    os.write(file, f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n".encode())
    time.sleep(0.02)
"""
"""The program: it lives until it is killed, or until there is a file `finish`."""

_SERVER = """
import dataclasses, sys
from trainyard_server import main
given = main.read_settings
quick = {"grace_s": GRACE_S, "lease_s": LEASE_S, "silent_after_s": 5.0}
quick |= {"backoff_first_s": 0.1, "tick_s": 0.2, "durable": False}


def read(arguments):
    settings, network = given(arguments)
    return dataclasses.replace(settings, **quick), network


main.read_settings = read
sys.exit(main.main())
""".replace("GRACE_S", str(GRACE_S)).replace("LEASE_S", str(LEASE_S))

_ADMIN = {"Authorization": f"Bearer {long_token('admin')}"}


@dataclass(frozen=True)
class Life:
    """The first and the last heartbeat of one replica."""

    began: float
    ended: float


class Network:
    """A port that forwards to another one, until it is cut: then it drops everything silently."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._open = threading.Event()
        self._open.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        """Open the network again. Open connections are closed."""
        for connection in self._sockets[1:]:
            _shut(connection)
        self._open.set()

    def close(self) -> None:
        self._open.set()
        for connection in self._sockets:
            _shut(connection)
            connection.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [here, there]
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):  # one of the two has closed it
            while data := one.recv(1 << 16):
                self._open.wait()
                other.sendall(data)
        self._open.wait()
        _shut(other)


class Worker:
    """A state directory, and the agent that works in it now."""

    def __init__(self, root: Path, name: str, network: Network, flags: list[str], env: Mapping[str, str]) -> None:
        self.state_dir = root / name
        self.network = network
        self._command = [sys.executable, "-m", "trainyard_agent", "--server", network.url, "--name", name]
        self._command += ["--token-file", str(root / "agent"), "--state-dir", str(self.state_dir), *flags]
        self._env = {**os.environ, **env}
        self._log = root / f"{name}.log"
        self.start()

    def kill(self) -> None:
        self.agent.kill()
        self.agent.wait()

    def start(self) -> None:
        """Start an agent, after the last one has ended."""
        with self._log.open("ab") as log:
            self.agent = subprocess.Popen(self._command, stderr=log, env=self._env)

    @property
    def holds_a_run(self) -> bool:
        return any(self.state_dir.glob("runs/*/run.json")) or any(self.state_dir.glob("containers/*/run.json"))

    @property
    def has_lease(self) -> bool:
        return (self.state_dir / "lease.json").exists() and is_locked(self.state_dir / watchdog_files.LOCK)

    def watchdog_log(self) -> str:
        return (self.state_dir / "fence.log").read_text()

    def end(self) -> None:
        """Stop the agent and its replicas, whatever the test did."""
        self.kill()
        words = [sys.executable, "-m", "trainyard_agent", "--state-dir", str(self.state_dir), "--stop-all"]
        done = subprocess.run([*words, "--grace", "0.1"], env=self._env, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, self._log.read_text()
        assert not is_locked(self.state_dir / watchdog_files.LOCK)


class Cluster:
    def __init__(self, root: Path, stack: ExitStack, flags: list[str], env: Mapping[str, str]) -> None:
        self.root = root
        self.job_dir = root / "job"
        self.job_dir.mkdir()
        (root / "modules").mkdir()
        (root / "modules" / "program.py").write_text(HEARTBEATS)
        for role in ("admin", "agent"):
            write_token(root / role, long_token(role))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        arguments = ["--data-dir", str(root / "data"), "--port", str(port)]
        for role in ("admin", "agent"):
            arguments += ["--token-file", f"{role}={root / role}"]
        with (root / "server.log").open("wb") as log:
            server = subprocess.Popen([sys.executable, "-c", _SERVER, *arguments], stderr=log)
        stack.callback(server.wait)
        stack.callback(server.kill)
        self._client = stack.enter_context(
            httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=_ADMIN, timeout=30)
        )
        until(self._answers, "the server")
        self.workers = []
        for name in ("one", "two"):
            network = Network(port)
            stack.callback(network.close)
            flags_of_both = [*flags, "--capacity", "strict", "--replica-env", f"PYTHONPATH={root / 'modules'}"]
            worker = Worker(root, name, network, flags_of_both, env)
            stack.callback(worker.end)
            self.workers.append(worker)
        until(lambda: all(worker.has_lease for worker in self.workers), "both leases, and their watchdogs")

    def submit(self, **fields: Any) -> None:
        training_input = {"scaleTier": "CUSTOM", "masterType": "local-1", "jobDir": str(self.job_dir)}
        body = {"jobId": "j", "trainingInput": {**training_input, **fields}}
        answer = self._client.post("/v1/projects/p/jobs", json=body)
        assert answer.status_code == 200, answer.text
        until(lambda: self.lives() or self.detail().state in ENDED, "the first run")
        assert len(self.lives()) == 1, self.detail()

    def holder(self) -> Worker:
        """The worker that has the run; the other one has none."""
        (holder,) = [worker for worker in self.workers if worker.holds_a_run]
        return holder

    def detail(self) -> JobDetail:
        answer = self._client.get("/trainyard/v1/projects/p/jobs/j")
        assert answer.status_code == 200, answer.text
        return JobDetail.model_validate_json(answer.content)

    def lives(self) -> list[Life]:
        """The lives of all replicas, in the order of their starts."""
        beats = [path.read_text().split() for path in self.job_dir.glob("*.beats")]
        return sorted((Life(float(b[0]), float(b[-1])) for b in beats if b), key=lambda life: life.began)

    def finish(self) -> None:
        (self.job_dir / "finish").touch()

    def _answers(self) -> bool:
        try:
            return self._client.get("/healthz").status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def cluster(root: Path, flags: list[str], env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(root, stack, flags, env or {})


def freeze(worker: Worker) -> None:
    worker.agent.send_signal(signal.SIGSTOP)


def thaw(worker: Worker) -> None:
    with suppress(ProcessLookupError):
        os.kill(worker.agent.pid, signal.SIGCONT)  # not waited for: the id is still its own


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
