"""The agent as a Deployment in its cluster: docs/how-to/kubernetes.md as a test."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from beds.certificates import Authority
from beds.kubernetes.agent_image import AGENT_IMAGE, agent_image
from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.kubernetes.kustomize import DEPLOY
from beds.programs import Programs
from beds.token_files import long_token, write_token
from beds.waiting import until
from support.addresses import free_ports
from trainyard_cli.client import Client
from trainyard_cli.settings import DEFAULT_PROJECT, Server
from trainyard_protocol.answers.log_views import LogEntry

pytestmark = [pytest.mark.e2e, pytest.mark.long]

LABEL, RUN = "app.kubernetes.io/name=trainyard-agent", "trainyard.dev/run"
COUNTS = "i=0; until [ -e /tmp/end ]; do echo line $i; i=$((i+1)); sleep 0.1; done"


def edited(directory: Path, server: str, namespace: str) -> None:
    """deploy/kubernetes as the how-to has it edited."""
    shutil.copytree(DEPLOY / "kubernetes", directory)
    settings = {"server": server, "ca-file": "/etc/trainyard/ca.pem", "pool": "2x8x64"}
    (directory / "agent.toml").write_text("".join(f'{name} = "{value}"\n' for name, value in settings.items()))
    file = directory / "kustomization.yaml"
    name, _, tag = AGENT_IMAGE.rpartition(":")
    image = {"name": "registry.example.com/trainyard/agent", "newName": name, "newTag": tag}
    kustomization = yaml.safe_load(file.read_text()) | {"namespace": namespace, "images": [image]}
    file.write_text(yaml.safe_dump(kustomization))
    # As kubectl 1.21 does by itself; that of the bed is older.
    file = directory / "agent.yaml"
    file.write_text(file.read_text().replace("metadata:\n  name: trainyard\n", f"metadata:\n  name: {namespace}\n"))


def config(path: Path) -> str:
    part = {"imageUri": BASE_IMAGE, "containerCommand": ["sh", "-c", COUNTS]}
    gang = {"masterType": "local-1", "masterConfig": part, "workerType": "local-1", "workerConfig": part}
    path.write_text(yaml.safe_dump({"trainingInput": {"scaleTier": "CUSTOM", "workerCount": 1, **gang}}))
    return str(path)


def test_deleted_pod_of_the_agent_is_replaced_and_its_runs_go_on(kubernetes: Bed, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    operator, namespace = Programs(tmp_path), f"inside-{os.getpid()}"
    operator.environment["KUBECONFIG"] = str(kubernetes.admin)
    kubectl = str(kubernetes.kubectl), "-n", namespace
    admin = str(operator.token("admin"))
    authority = Authority(tmp_path)
    ca_file = "--ca-file", str(authority.ca_file)
    with agent_image() as image, kubernetes.door_to_host(port) as door:
        kubernetes.add(image)
        issued = authority.issue("127.0.0.1", door.partition(":")[0])
        url = f"https://127.0.0.1:{port}"
        tls = ("--tls-cert", str(issued.certificate), "--tls-key", str(issued.key))
        with operator.ending():
            allowed = ("--allowed-host", door.partition(":")[0])
            operator.server(*tls, *allowed, roles={"admin": "admin"}, url=url)
            operator.ok("trainyard", "login", url, *ca_file, "--token-file", admin)
            secret = operator.ok("trainyard", "agents", "add", "cluster", "--format", "value(secret)")
            token = "--token-file", str(write_token(tmp_path / "agent-secret", secret.strip()))
            edited(tmp_path / "deploy", f"https://{door}", namespace)
            operator.ok(*kubectl, "apply", "-k", "deploy")
            files = f"--from-file=token={token[1]}", f"--from-file=ca.pem={authority.ca_file}"
            operator.ok(*kubectl, "create", "secret", "generic", "trainyard-agent-token", *files)

            def agent_log() -> str:
                return operator.ok(*kubectl, "logs", "deployment/trainyard-agent")

            def lines() -> list[int]:
                with Client(Server(url, long_token("admin"), ca_file=authority.ca_file), DEFAULT_PROJECT) as client:
                    logged = [one for one in client.logs("counts", follow=False) if isinstance(one, LogEntry)]
                texts = [one.text for one in logged if one.task == "master-replica-0"]
                return [int(text.removeprefix("line ")) for text in texts if text.startswith("line ")]

            until(lambda: "alive" in operator.ok("trainyard", "agents", "list"), "the agent")
            operator.ok("jobs", "submit", "training", "counts", "--config", config(tmp_path / "counts.yaml"))
            until(lambda: len(lines()) > 5, "lines")
            images = "-o", "jsonpath={.items[*].spec.initContainers[*].image}"
            assert operator.ok(*kubectl, "get", "pods", "-l", RUN, *images).split() == [AGENT_IMAGE] * 2
            (pod,) = operator.ok(*kubectl, "get", "pods", "-o", "name", "-l", LABEL).split()
            operator.ok(*kubectl, "delete", pod)
            until(lambda: "recovered 1 run(s)" in agent_log(), "the next agent")
            seen = len(lines())
            until(lambda: len(lines()) > seen + 5, "more lines")

            outside = [
                *(sys.executable, "-m", "trainyard_agent", "--server", url, *ca_file, *token),
                *("--state-dir", "outside", "--runtime", "kubernetes", "--pool", "2x8x64"),
                *("--kubeconfig", str(kubernetes.admin), "--namespace", namespace),
            ]
            operator.ok(*kubectl, "scale", "deployment", "trainyard-agent", "--replicas", "0")
            until(lambda: not operator.ok(*kubectl, "get", "pods", "-o", "name", "-l", LABEL), "the end of the agent")
            operator.spawn("outside", *outside)
            until(lambda: "recovered 1 run(s)" in operator.log_of("outside"), "its turn")
            for replica in operator.ok(*kubectl, "get", "pods", "-o", "name", "-l", RUN).split():
                operator.ok(*kubectl, "exec", replica, "--", "touch", "/tmp/end")
            until(lambda: "SUCCEEDED" in operator.ok("jobs", "describe", "counts"), "the end")
            assert lines() == list(range(len(lines())))
            objects = "get", "pods,services,configmaps", "-l", RUN
            gone = "No resources found"
            until(lambda: gone in operator.done(*kubectl, *objects).stderr, "the removal of its objects")
            assert "Traceback" not in operator.log_of("outside")
            operator.ok(*kubectl, "delete", "namespace", namespace)
