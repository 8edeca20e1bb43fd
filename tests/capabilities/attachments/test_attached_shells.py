"""`jobs exec`, `jobs shell` and `jobs port-forward` by the installed program, typed at a terminal and in a pipe."""

import hashlib
import os
import signal
import subprocess
import uuid
from typing import Any

import httpx
import pexpect
import psutil
import pytest

from beds.waiting import until
from e2e.harness import Service, local
from trainyard_cli.local.state import LocalState

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PATIENCE_S = 60
JOB = "served"
PROGRAM = """
import http.server, os, pathlib
pathlib.Path("block").write_bytes(os.urandom(1_000_000) * 20)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print("port", server.server_port, flush=True)
server.serve_forever()
"""


def submitted(service: Service) -> int:
    """Submit the job `served`; the port of its program once that runs."""
    service.program(PROGRAM)
    config = str(service.config(**local()))
    service.ok("jobs", "submit", "training", JOB, "--config", config, "--package-path", "prog")
    service.wait_for_line(JOB, "port ")
    return port_of(service)


def port_of(service: Service) -> int:
    return int(next(line for line in service.log(JOB).splitlines() if "port " in line).rpartition(" ")[2])


@pytest.fixture
def port(service: Service) -> int:
    """The port of the running job `served`, which the tests share."""
    return port_of(service) if service.state(JOB) == "RUNNING" else submitted(service)


def spawn(service: Service, *words: str) -> pexpect.spawn:
    environment = {**service.environment, "TERM": "xterm", "LANG": "C.UTF-8"}
    given: Any = {"env": environment, "cwd": str(service.work), "encoding": "utf-8", "timeout": PATIENCE_S}
    return pexpect.spawn("trainyard", ["jobs", *words], dimensions=(33, 111), **given)


def exit_code(child: pexpect.spawn) -> int | None:
    child.expect(pexpect.EOF)
    child.close()
    code: int | None = child.exitstatus
    return code


@pytest.mark.usefixtures("port")
def test_replica_is_entered_and_left(service: Service) -> None:
    done = service.run("jobs", "exec", JOB, "--", "sh", "-c", "echo out $CLOUD_ML_JOB_ID; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (f"out {JOB}\n", "err\n", 7)
    piped = subprocess.run(
        ["trainyard", "jobs", "exec", JOB, "master", "--", "sha256sum"],
        env=service.environment,
        input=b"piped " * 100_000,
        capture_output=True,
        check=True,
    )
    assert piped.stdout.decode().split()[0] == hashlib.sha256(b"piped " * 100_000).hexdigest()
    assert service.run("jobs", "exec", JOB, "--", "no-such-program").returncode == 127
    assert "The command is missing" in service.run("jobs", "exec", JOB).stderr

    shell = spawn(service, "shell", JOB)
    shell.expect("[#$] $")
    shell.sendline("stty size; echo in-$CLOUD_ML_JOB_ID-$TERM")
    shell.expect("33 111")
    shell.expect(f"in-{JOB}-xterm\r\n")
    shell.setwinsize(44, 99)
    shell.sendline('while [ "$(stty size)" != \'44 99\' ]; do sleep 0.1; done; echo resi""zed')
    shell.expect("resized")
    shell.sendline("echo wai''ting; sleep 1000")
    shell.expect("waiting\r\n")
    shell.sendcontrol("c")
    # As for any shell: until it has given the terminal to its program, it is the one that gets the signal.
    while shell.expect(["[#$] $", pexpect.TIMEOUT], timeout=1):
        shell.sendcontrol("c")
    shell.sendline("exit 5")
    assert exit_code(shell) == 5
    hung = spawn(service, "exec", JOB, "--", "sh", "-c", "echo he''re; exec sleep 1000")
    hung.expect("here")
    hung.send("\r~.")
    hung.expect("Disconnected.")
    assert exit_code(hung) == 255

    actions = service.ok("audit", "list", "--action", "attachments.create", "--format", "value(subject)").splitlines()
    assert f"{JOB}/master-replica-0: no-such-program" in actions


def test_port_has_what_the_program_sends_again_once_a_killed_server_is_back(service: Service, port: int) -> None:
    forward = spawn(service, "port-forward", JOB, f":{port}", ":1")
    forward.expect(rf"Forwarding (127\.0\.0\.1:\d+) -> master-replica-0:{port}\r\n")
    local_address = forward.match[1]
    forward.expect(r"Forwarding (127\.0\.0\.1:\d+) -> master-replica-0:1\r\n")
    closed = forward.match[1]
    total = hashlib.sha256()
    with httpx.stream("GET", f"http://{local_address}/block", timeout=PATIENCE_S, trust_env=False) as answer:
        for part in answer.iter_bytes():
            total.update(part)
    there = service.ok("jobs", "exec", JOB, "--", "sha256sum", "program/block").split()[0]
    assert total.hexdigest() == there
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{closed}/", timeout=PATIENCE_S, trust_env=False)
    forward.expect("Nothing listens at port 1 ")

    command = spawn(service, "exec", JOB, "--", "sh", "-c", "echo he''re; exec sleep 1000")
    command.expect("here")
    server = LocalState(service.state_dir).process("server")
    assert server is not None
    os.kill(server.pid, signal.SIGKILL)
    command.expect("The connection to the server was lost.")
    assert exit_code(command) == 255
    forward.expect("The server was restarted, or is not reached; trying for 2 minutes...")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{local_address}/", timeout=PATIENCE_S, trust_env=False)
    service.ok("up")
    forward.expect("The server answers: forwarding again.")
    assert httpx.get(f"http://{local_address}/", timeout=PATIENCE_S, trust_env=False).status_code == 200
    service.ok("jobs", "cancel", JOB)
    forward.expect("ERROR: ")
    assert exit_code(forward) == 255


def sleepers(mark: str) -> list[int]:
    """The processes of a shell's commands with the mark as their name."""
    return [process.pid for process in psutil.process_iter(["cmdline"]) if (process.info["cmdline"] or [""])[0] == mark]


@pytest.mark.parametrize("ends", ["down", "kill of the agent"])
def test_nothing_of_what_is_attached_outlives_its_agent(own_service: Service, ends: str) -> None:
    service, mark, port = own_service, uuid.uuid4().hex, submitted(own_service)
    sleep = f"bash -c 'exec -a {mark} sleep 1000'"
    shell = spawn(service, "shell", JOB)
    shell.expect("[#$] $")
    shell.sendline(f"set -m; trap '' HUP; {sleep} & setsid {sleep} & (nohup {sleep} >/dev/null 2>&1 &); {sleep}")
    command = spawn(service, "exec", JOB, "--", "bash", "-c", f"{sleep} & {sleep}")
    forward = spawn(service, "port-forward", JOB, f":{port}")
    forward.expect("Forwarding")
    until(lambda: len(sleepers(mark)) == 6, "all of them")
    if ends == "down":
        service.ok("down")
        assert sleepers(mark) == []
    else:
        agent = LocalState(service.state_dir).process("agent")
        assert agent is not None
        os.kill(agent.pid, signal.SIGKILL)
        until(lambda: not sleepers(mark), "their end")
    for attached in (shell, command, forward):
        attached.close(force=True)
