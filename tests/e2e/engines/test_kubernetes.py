"""Jobs on a cluster: docs/kubernetes.md as a test, with a real server, agent and Kubernetes."""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.token_files import long_token, write_token
from beds.waiting import until
from e2e.operators import Operator
from support.addresses import free_ports
from trainyard_agent.engines.kubernetes.api.access import RULES

pytestmark = pytest.mark.e2e

MEETS_ALL = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
me = config["task"]
listening = socket.create_server(("", 2222), backlog=16)
peers = [(kind, n, address) for kind, several in config["cluster"].items() for n, address in enumerate(several)]
assert len(peers) == 4, peers
for kind, n, address in peers:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection((host, int(port)), 5).close()
            break
        except OSError:
            assert time.monotonic() < deadline, address
            time.sleep(0.1)
    print(f"met {kind} {n}", flush=True)
for _ in peers:
    listening.accept()
"""


def config(path: Path, machine: str, workers: int) -> str:
    part = {"imageUri": BASE_IMAGE, "containerCommand": ["python3", "-c", MEETS_ALL]}
    training = {
        "scaleTier": "CUSTOM",
        "masterType": machine,
        "masterConfig": part,
        "workerType": machine,
        "workerCount": workers,
        "workerConfig": part,
    }
    path.write_text(yaml.safe_dump({"trainingInput": training}))
    return str(path)


def test_gang_of_four_meets_on_two_nodes_and_one_that_finds_no_room_says_so(
    kubernetes: Bed, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    url, operator = f"http://127.0.0.1:{port}", Operator(tmp_path)
    tokens = {role: write_token(tmp_path / role, long_token(role)) for role in ("admin", "agent")}
    python = sys.executable
    given = [word for role, path in tokens.items() for word in ("--token-file", f"{role}={path}")]
    serve = [python, "-m", "trainyard_server", "--data-dir", "data", "--port", str(port), *given]
    kubeconfig = kubernetes.with_role(f"jobs-{os.getpid()}", RULES)
    agent = [
        *(python, "-m", "trainyard_agent", "--server", url, "--token-file", str(tokens["agent"])),
        *("--state-dir", "agent-state", "--name", "bed", "--runtime", "kubernetes"),
        *("--kubeconfig", str(kubeconfig), "--pool", "2x8x64"),
    ]
    with operator.running("server", *serve) as server_log:
        until(lambda: "startup complete" in server_log.read_text(), "the server")
        operator.ok("trainyard", "login", url, "--token-file", str(tokens["admin"]))
        with operator.running("agent", *agent) as agent_log:
            until(lambda: "bed" in operator.ok("trainyard", "agents", "list"), "the agent")
            operator.ok(
                "jobs",
                "submit",
                "training",
                "wide",
                "--config",
                config(tmp_path / "w.yaml", "n1-standard-8", 1),
            )
            until(lambda: "Insufficient cpu" in operator.ok("jobs", "why", "wide"), "the reason")
            operator.ok("jobs", "cancel", "wide")

            submit = "jobs", "submit", "training", "gang", "--stream-logs", "--config"
            log = operator.ok(*submit, config(tmp_path / "gang.yaml", "local-1", 3))
            assert len(re.findall(r"met (?:chief|master|worker) \d", log)) == 16, log
            assert "Traceback" not in agent_log.read_text(), agent_log.read_text()
