"""JupyterLab and debugpy, from PyPI, in a `jobs dev` job."""

import json
import re
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from beds.waiting import until
from e2e.harness import REPOSITORY, Service, local

pytestmark = [pytest.mark.e2e, pytest.mark.frameworks]

PATIENCE_S = 300.0


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


class Debugger:
    """The Debug Adapter Protocol over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._input = connection.makefile("rb")
        self._sequence = 0
        self._events: list[dict[str, Any]] = []

    def send(self, name: str, arguments: Mapping[str, Any]) -> int:
        self._sequence += 1
        message = {"seq": self._sequence, "type": "request", "command": name, "arguments": arguments}
        body = json.dumps(message).encode()
        self._connection.sendall(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        return self._sequence

    def request(self, name: str, **arguments: Any) -> dict[str, Any]:
        return self.answer(self.send(name, arguments))

    def answer(self, sequence: int) -> dict[str, Any]:
        while True:
            message = self._read()
            if message["type"] == "response" and message["request_seq"] == sequence:
                assert message["success"], message
                return dict(message.get("body") or {})
            self._events.append(message)

    def event(self, name: str) -> dict[str, Any]:
        while True:
            message = self._events.pop(0) if self._events else self._read()
            if message["type"] == "event" and message["event"] == name:
                return dict(message.get("body") or {})

    def _read(self) -> dict[str, Any]:
        size = 0
        while line := self._input.readline().strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        message: dict[str, Any] = json.loads(self._input.read(size))
        return message


def test_debugger_stops_the_training_of_the_template_at_a_breakpoint(service: Service) -> None:
    directory = service.work / "my_trainer"
    template = REPOSITORY / "trainer_template"
    shutil.copytree(template, directory, ignore=shutil.ignore_patterns("tests", "__pycache__"))
    with (directory / "requirements.txt").open("a") as file:
        file.write("\ndebugpy\n")
    service.done(*dev(service, "debugged", directory), timeout=PATIENCE_S)
    code = service.ok("jobs", "exec", "debugged", "--", "sh", "-c", "cd trainyard-dev/code && pwd").strip()
    lines = (directory / "trainer" / "task.py").read_text().splitlines()
    at = 1 + next(number for number, line in enumerate(lines) if "load_digits()" in line and "images, labels" in line)
    listening = (
        "cd trainyard-dev/code && "
        "exec python -m debugpy --listen 127.0.0.1:$0 --wait-for-client -m trainer.task --epochs 1"
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    with (
        command(service, "jobs", "exec", "debugged", "--", "sh", "-c", listening, str(port)),
        command(service, "jobs", "port-forward", "debugged", f":{port}") as forwarding,
    ):
        assert forwarding.stdout is not None
        match = re.search(r"127\.0\.0\.1:(\d+) ->", forwarding.stdout.readline())
        assert match is not None
        until(lambda: listens(port), "debugpy to listen")
        with socket.create_connection(("127.0.0.1", int(match[1])), 60) as connection:
            debugger = Debugger(connection)
            debugger.request("initialize", adapterID="test", pathFormat="path", linesStartAt1=True)
            paths = [{"localRoot": str(directory), "remoteRoot": code}]
            attached = debugger.send("attach", {"pathMappings": paths, "justMyCode": True})
            debugger.event("initialized")
            task = str(directory / "trainer" / "task.py")
            debugger.request("setBreakpoints", source={"path": task}, breakpoints=[{"line": at}])
            debugger.request("configurationDone")
            debugger.answer(attached)
            stopped = debugger.event("stopped")
            frame = debugger.request("stackTrace", threadId=stopped["threadId"])["stackFrames"][0]
            debugger.request("disconnect", terminateDebuggee=True)
    service.ok("jobs", "cancel", "debugged")
    assert stopped["reason"] == "breakpoint"
    assert (frame["name"], frame["line"], frame["source"]["path"]) == ("train", at, task)
    service.wait_for("debugged", "CANCELLED")


def listens(port: int) -> bool:
    """Whether something listens at the port of this machine, on which the replica runs; nothing is connected to it."""
    state = f":{port:04X} 00000000:0000 0A"
    return state in Path("/proc/net/tcp").read_text()
