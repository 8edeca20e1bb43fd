"""Cluster of Ray on this machine, for rows that compare with Ray Jobs."""

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import httpx

from benchmarks.jobs.service import free_ports
from benchmarks.jobs.tools import RAY, installed

_PATIENCE_S = 60.0


@contextmanager
def ray() -> Iterator[httpx.Client]:
    """A client of the jobs API of a cluster on this machine."""
    programs = installed(RAY)
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as directory, ExitStack() as stack:
        port, dashboard = map(str, free_ports(2))
        environment = {
            **os.environ,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        head = ["--head", "--block", "--port", port, "--dashboard-port", dashboard, "--temp-dir", directory]
        process = subprocess.Popen(
            [
                programs / "ray",
                "start",
                *head,
                "--include-dashboard",
                "true",
                "--node-ip-address",
                "127.0.0.1",
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        stack.callback(_end, process)
        client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{dashboard}", timeout=60))
        _wait_for(client, process)
        yield client


def _wait_for(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            if client.get("/api/jobs/").is_success:
                return
        except httpx.TransportError:
            pass
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("Ray does not come up")
        time.sleep(0.2)


def _end(process: subprocess.Popen[bytes]) -> None:
    """`ray start --block` ends what it has started."""
    process.terminate()
    process.wait(_PATIENCE_S)
