"""A server with HTTPS in a network namespace, a machine that joins it in another: docs/tutorials/second-machine.md."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from beds.certificates import Authority
from beds.programs import Programs
from beds.token_files import long_token
from beds.waiting import until
from e2e.machines import Machine, machines

pytestmark = pytest.mark.e2e

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


def test_machine_joins_by_the_printed_line_and_runs_a_job_that_reaches_the_servers_gs(tmp_path: Path) -> None:
    with machines(tmp_path, ["server", "second"]) as (there, here):
        _join_and_run(there, here.programs)


def _join_and_run(there: Machine, machine: Programs) -> None:
    server = there.programs
    authority = Authority(server.home)
    issued = authority.issue(there.address)
    url = f"https://{there.address}:8470"
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
