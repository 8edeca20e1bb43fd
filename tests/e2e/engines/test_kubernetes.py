"""Jobs on a cluster: docs/how-to/kubernetes.md as a test, with a real server, agent and Kubernetes."""

import os
import re
from pathlib import Path

import pytest
import yaml

from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.programs import Programs
from beds.waiting import until
from trainyard_agent.engines.kubernetes.api.access import RULES

pytestmark = [pytest.mark.e2e, pytest.mark.long]

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


def test_gang_of_four_meets_on_two_nodes_and_one_that_finds_no_room_says_so(kubernetes: Bed, tmp_path: Path) -> None:
    with Programs(tmp_path).ending() as operator:
        operator.server(roles={"admin": "admin", "agent": "agent"})
        operator.ok("trainyard", "login", operator.url, "--token-file", str(operator.token("admin")))
        kubeconfig = str(kubernetes.with_role(f"jobs-{os.getpid()}", RULES))
        operator.agent("--name", "bed", "--runtime", "kubernetes", "--kubeconfig", kubeconfig, "--pool", "2x8x64")
        until(lambda: "bed" in operator.ok("trainyard", "agents", "list"), "the agent")
        submit = ("jobs", "submit", "training")
        wide = config(tmp_path / "wide.yaml", "n1-standard-8", 1)
        operator.ok(*submit, "wide", "--config", wide)
        until(lambda: "Insufficient cpu" in operator.ok("jobs", "why", "wide"), "the reason")
        operator.ok("jobs", "cancel", "wide")

        gang = config(tmp_path / "gang.yaml", "local-1", 3)
        log = operator.done(*submit, "gang", "--stream-logs", "--config", gang).stderr
        assert len(re.findall(r"met (?:chief|master|worker) \d", log)) == 16, log
        assert "Traceback" not in operator.log_of("agent")


def test_code_is_synchronised_into_a_pod_which_ends_when_it_is_idle(kubernetes: Bed, tmp_path: Path) -> None:
    with Programs(tmp_path).ending() as operator:
        operator.server(roles={"admin": "admin", "agent": "agent"})
        operator.ok("trainyard", "login", operator.url, "--token-file", str(operator.token("admin")))
        kubeconfig = str(kubernetes.with_role(f"dev-{os.getpid()}", RULES))
        operator.agent("--name", "bed", "--runtime", "kubernetes", "--kubeconfig", kubeconfig, "--pool", "1x2x8")
        code = tmp_path / "code"
        code.mkdir()
        (code / "train.py").write_text("print('by the pod')\n")
        machine = ("--scale-tier", "custom", "--master-machine-type", "local-1", "--master-image-uri", BASE_IMAGE)
        dev = ("jobs", "dev", "waits", *machine, "--idle", "20s", "--package-path", str(code))
        place = re.search(r"changed: (/\S+)$", operator.done("trainyard", *dev).stderr, re.MULTILINE)
        assert place is not None
        run = ("jobs", "exec", "waits", "--", "python3", f"{place[1]}/train.py")
        assert operator.ok("trainyard", *run) == "by the pod\n"
        log = operator.done("trainyard", "jobs", "stream-logs", "waits").stdout
        assert "Nothing used it for 20 s: it ends." in log
