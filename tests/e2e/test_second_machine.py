"""A server with HTTPS in one network namespace, a machine that joins it in another: docs/machines-more.md as a test."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.certificates import Authority
from beds.token_files import long_token, write_token
from beds.waiting import until
from e2e.harness import BIN

pytestmark = pytest.mark.e2e

SERVER, MACHINE = "198.18.77.1", "198.18.77.2"
PROGRAM = """
import json, os, urllib.request
storage = os.environ["STORAGE_EMULATOR_HOST"]
def call(path, data=None, kind="application/json"):
    request = urllib.request.Request(storage + path, data, {"Content-Type": kind})
    return urllib.request.urlopen(request).read()
call("/storage/v1/b?project=local", json.dumps({"name": "models"}).encode())
call("/upload/storage/v1/b/models/o?uploadType=media&name=m", b"trained there", "text/plain")
print(call("/storage/v1/b/models/o/m?alt=media").decode())
"""


class Machine:
    """A network namespace with an address, and programs in it with a home of their own."""

    def __init__(self, name: str, home: Path) -> None:
        self.name = name
        home.mkdir()
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("TRAINYARD_", "STORAGE_", "XDG_", "SSL_"))
        }
        self.environment = {**kept, "HOME": str(home), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
        self.home = home

    def start(self, words: list[str], log: Path, stdin: str = "") -> subprocess.Popen[str]:
        with log.open("w") as out:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, *words],
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=out,
                text=True,
            )
        assert process.stdin is not None
        process.stdin.write(stdin)
        process.stdin.close()
        return process

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["ip", "netns", "exec", self.name, *words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )

    def ok(self, *words: str) -> tuple[str, str]:
        done = self.run("trainyard", *words)
        assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
        return done.stdout, done.stderr


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Two machines with a network of their own between them."""
    names = [f"ty-{side}-{os.getpid()}" for side in "ab"]
    devices = [f"ty{side}{os.getpid()}"[:15] for side in "ab"]
    made = []
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
                pytest.skip("takes a user who may make network namespaces")
            made.append(name)
        _ip(
            "link",
            "add",
            devices[0],
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            devices[1],
            "netns",
            names[1],
        )
        for name, device, address in zip(names, devices, (SERVER, MACHINE), strict=True):
            _ip("-n", name, "address", "add", f"{address}/30", "dev", device)
            for link in (device, "lo"):
                _ip("-n", name, "link", "set", link, "up")
        yield Machine(names[0], tmp_path / "server"), Machine(names[1], tmp_path / "machine")
    finally:
        for name in made:
            _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def test_machine_joins_by_the_printed_line_and_runs_a_job_that_reaches_the_servers_gs(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    server, machine = machines
    authority = Authority(server.home)
    issued = authority.issue(SERVER)
    operator = write_token(tmp_path / "operator", long_token("operator"))
    url = f"https://{SERVER}:8470"
    serve = [
        *(sys.executable, "-m", "trainyard_server", "--data-dir", "data", "--host", SERVER),
        *("--tls-cert", str(issued.certificate), "--tls-key", str(issued.key)),
        *("--token-file", f"admin:you={operator}"),
    ]
    secret = write_token(tmp_path / "secret", long_token("secret"))
    store = [
        sys.executable,
        "-m",
        "trainyard_storage.emulator",
        "--data-dir",
        "gcs",
        "--port",
        "8471",
    ]
    running = [server.start([*store, "--secret-file", str(secret)], tmp_path / "storage.log")]
    server.environment["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:8471/{long_token('secret')}"
    running.append(server.start(serve, tmp_path / "server.log"))
    try:
        until(lambda: "startup complete" in (tmp_path / "server.log").read_text(), "the server")
        ca_file = str(authority.ca_file)
        server.ok("login", url, "--ca-file", ca_file, "--token-file", str(operator))
        token, printed = server.ok("agents", "add", "second")
        line = re.search(r"^  (trainyard agent join .*)$", printed, re.MULTILINE)
        assert line is not None, printed
        (machine.home / authority.ca_file.name).write_bytes(authority.ca_file.read_bytes())
        front = ["trainyard", "agent", "storage", url, "--ca-file", authority.ca_file.name]
        running.append(machine.start(front, tmp_path / "front.log"))
        until(lambda: "gs:// of" in (tmp_path / "front.log").read_text(), "the front")
        words = [
            *shlex.split(line[1]),
            "--token-file",
            "-",
            "--cpus",
            "0",
            "--runtime",
            "process",
            "--one-user",
            "--replica-env",
            "STORAGE_EMULATOR_HOST=http://127.0.0.1:8479/{job}",
        ]
        running.append(machine.start(words, tmp_path / "agent.log", stdin=token))
        listed = "agents", "list", "--format", "value(name,state)"
        until(lambda: server.ok(*listed)[0].split() == ["second", "alive"], "the agent")
        assert "lets this agent join as second" in (tmp_path / "agent.log").read_text()
        (machine.home / "train.py").write_text(PROGRAM)
        machine.ok("login", url, "--ca-file", authority.ca_file.name, "--token-file", str(operator))
        submit = "jobs", "submit", "training", "job", "--package-path", "train.py", "--stream-logs"
        assert "trained there" in machine.ok(*submit)[1]
        wrong = machine.run("trainyard", "agent", "join", url, "--token-file", str(operator))
        assert wrong.returncode == 1
        assert "no authority that this machine trusts" in wrong.stderr
        machine.ok("agents", "drain", "second")
        machine.ok("agents", "remove", "second")
        refusal = "is not a token of this server"
        until(lambda: refusal in (tmp_path / "agent.log").read_text(), "the refusal")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(timeout=30)
