"""Programs of others that rows compare with: Ray and uv out of a package index, Docker engines and PostgreSQL servers
as the tests have them, and Slurm; and a wait for any of them."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from benchmarks.rows import LeftOut
from trainyard_protocol.net.loopback import free_port

if TYPE_CHECKING:
    from beds.databases import PostgreSQL
    from beds.engines import Engine
    from beds.slurm import SlurmBed

RAY = "ray[default]==2.60.0"
MLFLOW = "mlflow==3.17.2"

_ROOT = Path(__file__).parents[1]
sys.path += [str(_ROOT / "tests"), str(_ROOT / "trainer_library/tests")]  # whose beds start engines and databases


def wait_for(holds: Callable[[], bool], failure: str, patience_s: float = 300.0, pause_s: float = 0.02) -> None:
    """Wait until a condition holds. Raises RuntimeError with the sentence that says what does not."""
    deadline = time.monotonic() + patience_s
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(failure)
        time.sleep(pause_s)


def answers(client: httpx.Client, path: str) -> bool:
    """Whether a server answers a request."""
    try:
        return client.get(path).is_success
    except httpx.TransportError:
        return False


def installed(requirement: str) -> Path:
    """The directory of the programs of a package, in an environment that is made once. Raises LeftOut."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trainyard"
    cache.mkdir(parents=True, exist_ok=True)
    directory = cache / f"benchmark-{requirement.translate(str.maketrans('[]=', '---'))}"
    with (cache / "benchmark.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            print(f"installing {requirement} into {directory}, once", file=sys.stderr)
            venv.create(directory, clear=True, with_pip=True)
            pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                raise LeftOut(f"{requirement} cannot be installed: {reason}.")
            (directory / "complete").touch()
    return directory / "bin"


@contextmanager
def engine() -> Iterator["Engine"]:
    """This machine's Docker engine, else one of its own, with the tests' base image. Raises LeftOut."""
    from beds import engines

    try:
        with engines.found() as shared:
            shared.provide_base_image()
            yield shared
    except engines.NoEngine as missing:
        raise LeftOut(f"There is no Docker engine: {missing}.") from missing


@contextmanager
def postgresql(durable: bool = False) -> Iterator["PostgreSQL"]:
    """A server; with `durable` a commit waits for the disk."""
    from beds import databases

    with databases.postgresql(durable=durable) as server:
        yield server


@contextmanager
def slurm() -> Iterator["SlurmBed"]:
    """A cluster of this machine, as the tests have it. Raises LeftOut."""
    from beds import slurm as beds

    try:
        with beds.started() as cluster:
            yield cluster
    except beds.NoSlurm as missing:
        raise LeftOut(f"There is no Slurm: {missing}.") from missing


@contextmanager
def ray() -> Iterator[httpx.Client]:
    """A client of the jobs API of a cluster of Ray on this machine."""
    programs, dashboard = installed(RAY), free_port()
    path = f"{programs}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory:
        ports = ["--port", str(free_port()), "--dashboard-port", str(dashboard)]
        place = ["--temp-dir", directory, "--node-ip-address", "127.0.0.1"]
        head = subprocess.Popen(
            [programs / "ray", "start", "--head", "--block", "--include-dashboard", "true", *ports, *place],
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{dashboard}", timeout=60) as client:
                wait_for(lambda: answers(client, "/api/jobs/"), "Ray does not come up.")
                yield client
        finally:  # `--block` ends what it has started
            head.terminate()
            head.wait()


@contextmanager
def mlflow() -> Iterator[tuple[httpx.Client, str]]:
    """A client of MLflow's own server, on SQLite, and the id of a run there."""
    programs, port = installed(MLFLOW), free_port()
    with tempfile.TemporaryDirectory(prefix="mlflow-") as directory:
        place = ["--backend-store-uri", f"sqlite:///{directory}/mlflow.db", "--default-artifact-root", directory]
        server = subprocess.Popen(
            [programs / "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1", *place],
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                wait_for(lambda: answers(client, "/health"), "MLflow's server does not come up.")
                answer = client.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0"})
                yield client, str(answer.raise_for_status().json()["run"]["info"]["run_id"])
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()


def wait_for_ray(client: httpx.Client) -> None:
    """Wait until none of Ray's jobs waits or runs."""

    def is_over() -> bool:
        jobs = client.get("/api/jobs/").raise_for_status().json()
        return all(job["status"] not in ("PENDING", "RUNNING") for job in jobs)

    wait_for(is_over, "Ray's jobs do not end.", pause_s=0.2)
