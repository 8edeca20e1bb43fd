"""A server with HTTPS in one network namespace, a machine that joins it in another: docs/machines-more.md as a test."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from beds.certificates import Authority
from beds.programs import Programs
from beds.token_files import long_token
from beds.waiting import until

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


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Programs, Programs]]:
    """Two machines with a network of their own between them."""
    names = [f"ty-{side}-{os.getpid()}" for side in "ab"]
    devices = [f"ty{side}{os.getpid()}"[:15] for side in "ab"]
    made = []
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
                pytest.skip("takes a user who may make network namespaces")
            made.append(name)
        (one, other), (near, far) = names, devices
        _ip("link", "add", near, "netns", one, "type", "veth", "peer", far, "netns", other)
        for name, device, address in zip(names, devices, (SERVER, MACHINE), strict=True):
            _ip("-n", name, "address", "add", f"{address}/30", "dev", device)
            for link in (device, "lo"):
                _ip("-n", name, "link", "set", link, "up")
        with ExitStack() as stack:
            programs = (Programs(tmp_path / name, inside=("ip", "netns", "exec", name)) for name in names)
            server, machine = (stack.enter_context(each.ending()) for each in programs)
            yield server, machine
    finally:
        for name in made:
            _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def test_machine_joins_by_the_printed_line_and_runs_a_job_that_reaches_the_servers_gs(
    machines: tuple[Programs, Programs],
) -> None:
    server, machine = machines
    authority = Authority(server.home)
    issued = authority.issue(SERVER)
    url = f"https://{SERVER}:8470"
    store = ("--data-dir", "gcs", "--port", "8471", "--secret-file", str(server.token("secret")))
    server.spawn("storage", sys.executable, "-m", "trainyard_storage.emulator", *store)
    server.environment["STORAGE_EMULATOR_HOST"] = f"http://127.0.0.1:8471/{long_token('secret')}"
    tls = ("--tls-cert", str(issued.certificate), "--tls-key", str(issued.key))
    server.server(*tls, roles={"operator": "admin:you"}, url=url)
    login = ("trainyard", "login", url, "--token-file", str(server.token("operator")), "--ca-file")
    server.ok(*login, str(authority.ca_file))
    added = server.done("trainyard", "agents", "add", "second")
    line = re.search(r"^  (trainyard agent join .*)$", added.stderr, re.MULTILINE)
    assert line is not None, added.stderr
    ca_file = authority.ca_file.name
    (machine.home / ca_file).write_bytes(authority.ca_file.read_bytes())
    machine.spawn("front", "trainyard", "agent", "storage", url, "--ca-file", ca_file)
    until(lambda: "gs:// of" in machine.log_of("front"), "the front")
    options = ("--token-file", "-", "--cpus", "0", "--runtime", "process", "--one-user")
    storage = ("--replica-env", "STORAGE_EMULATOR_HOST=http://127.0.0.1:8479/{job}")
    machine.spawn("agent", *shlex.split(line[1]), *options, *storage, stdin=added.stdout)
    listed = ("trainyard", "agents", "list", "--format", "value(name,state)")
    until(lambda: server.ok(*listed).split() == ["second", "alive"], "the agent")
    assert "lets this agent join as second" in machine.log_of("agent")
    (machine.home / "train.py").write_text(PROGRAM)
    machine.ok(*login, ca_file)
    submit = ("trainyard", "jobs", "submit", "training", "job", "--package-path", "train.py", "--stream-logs")
    assert "trained there" in machine.done(*submit).stderr
    wrong = machine.run("trainyard", "agent", "join", url, "--token-file", str(server.token("operator")))
    assert wrong.returncode == 1
    assert "no authority that this machine trusts" in wrong.stderr
    machine.ok("trainyard", "agents", "drain", "second")
    machine.ok("trainyard", "agents", "remove", "second")
    until(lambda: "is not a token of this server" in machine.log_of("agent"), "the refusal")
