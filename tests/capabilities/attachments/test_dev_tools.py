"""JupyterLab and debugpy, from PyPI, in a `jobs dev` job."""

import json
import re
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from e2e.harness import Service, local

pytestmark = [pytest.mark.e2e, pytest.mark.frameworks]


@contextmanager
def command(service: Service, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A command that goes on, until Ctrl-C."""
    process = service.start(*words)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def dev(service: Service, job: str, directory: Path, *words: str) -> tuple[str, ...]:
    config = service.config(f"{job}.yaml", pythonModule=None, **local())
    return ("jobs", "dev", job, "--config", str(config), "--package-path", str(directory), "--no-open", *words)


def test_kernel_of_jupyterlab_computes_with_a_file_of_the_directory(service: Service) -> None:
    directory = service.work / "notebooks"
    directory.mkdir()
    (directory / "helper.py").write_text("ONE = 1\n")
    with command(service, *dev(service, "lab", directory, "--notebook", "--rm")) as process:
        assert process.stdout is not None
        match = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/lab\?token=(\S+)\n", process.stdout.readline())
        assert match is not None
        address, token = match.groups()
        assert httpx.get(f"http://{address}/api/kernels", timeout=60).status_code == 403
        headers = {"Authorization": f"token {token}"}
        with httpx.Client(base_url=f"http://{address}", headers=headers, timeout=60) as client:
            assert client.get("/lab").status_code == 200
            kernel = client.post("/api/kernels", json={"name": "python3"}).json()["id"]
        url = f"ws://{address}/api/kernels/{kernel}/channels"
        with connect(url, additional_headers=headers, proxy=None, open_timeout=60) as channels:
            request = {
                "header": {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": "s"},
                "parent_header": {},
                "metadata": {},
                "channel": "shell",
                "content": {"code": "import helper; helper.ONE + 1", "silent": False},
            }
            channels.send(json.dumps(request))
            message: dict[str, Any] = {}
            while message.get("msg_type") != "execute_result":
                message = json.loads(channels.recv(120))
                assert message["msg_type"] != "error", message["content"]
        assert message["content"]["data"]["text/plain"] == "2"
    assert service.wait_for("lab", "CANCELLED", "SUCCEEDED") == "CANCELLED"
