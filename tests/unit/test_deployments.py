"""deploy/: the objects of a cluster are what Kubernetes knows, the unit of the server is what systemd knows, and both
start a server and an agent that take their options."""

import copy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

import trainyard_protocol
from beds.open_engines import agent_settings
from trainyard_server import main as server_main

DEPLOY = Path(__file__).parents[2] / "deploy"
VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
UNIT = DEPLOY / "systemd/trainyard-server.service"
SERVER_URL = "https://trainyard-server.trainyard-server.svc:8470"


def kustomization(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / name / "kustomization.yaml").read_text())
    return loaded


def objects(name: str) -> list[dict[str, Any]]:
    """The objects of a kustomization with its patches, as `kubectl kustomize` gives them, of what the files use."""
    made: list[dict[str, Any]] = []
    for resource in kustomization(name)["resources"]:
        path = DEPLOY / name / resource
        made += objects(str(path.resolve().relative_to(DEPLOY))) if path.is_dir() else _documents(path)
    for patch in kustomization(name).get("patches", []):
        wanted = patch["target"]["kind"], patch["target"]["name"]
        (target,) = (one for one in made if (one["kind"], one["metadata"]["name"]) == wanted)
        for operation in yaml.safe_load(patch["patch"]):
            _apply(target, operation)
    return made


def _documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def _apply(target: Any, operation: dict[str, Any]) -> None:
    """An operation of JSON Patch: `add` at the end of a list, or `replace`."""
    *above, last = operation["path"].strip("/").split("/")
    for step in above:
        target = target[int(step) if isinstance(target, list) else step]
    if operation["op"] == "add":
        assert last == "-"
        target.append(operation["value"])
    else:
        assert operation["op"] == "replace"
        target[int(last) if isinstance(target, list) else last] = operation["value"]


def container(made: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (workload,) = (one for one in made if one["kind"] == kind)
    (only,) = workload["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_of_a_site_are_what_the_api_knows(version: str) -> None:
    for found in [*objects("kubernetes-site"), *_documents(DEPLOY / "kubernetes/capacity.yaml")]:
        assert kubernetes_validate.validate(copy.deepcopy(found), version, strict=True) == version


def test_pods_have_no_root_and_write_to_volumes_alone() -> None:
    made = objects("kubernetes-site")
    for kind in ("StatefulSet", "Deployment"):
        (workload,) = (one for one in made if one["kind"] == kind)
        assert workload["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
        closed = container(made, kind)["securityContext"]
        assert closed["readOnlyRootFilesystem"]
        assert closed["capabilities"] == {"drop": ["ALL"]}
        release = ".".join(trainyard_protocol.__version__.split(".")[:2])
        assert container(made, kind)["image"].endswith(f":{release}")


def test_server_of_a_cluster_takes_its_options_and_listens_where_its_service_leads() -> None:
    made = objects("kubernetes-site")
    given = vars(server_main.READER.parser().parse_args(container(made, "StatefulSet")["args"]))
    assert given["tls_cert"] == ["/etc/trainyard/tls/tls.crt"]
    mounted = {mount["mountPath"] for mount in container(made, "StatefulSet")["volumeMounts"]}
    for files in (given["tls_cert"], given["tls_key"], [entry.split("=")[1] for entry in given["token_file"]]):
        assert {str(Path(file).parent) for file in files} <= mounted
    (service,) = (one for one in made if one["kind"] == "Service")
    host = "{name}.{namespace}.svc".format(**service["metadata"])
    assert f"https://{host}:{service['spec']['ports'][0]['port']}" == SERVER_URL
    assert container(made, "StatefulSet")["ports"][0] == {"name": "https", "containerPort": 8470}


def test_agent_of_a_site_calls_the_server_beside_it_and_takes_its_options() -> None:
    agent = container(objects("kubernetes-site"), "Deployment")
    environment = {entry["name"]: entry["value"] for entry in agent["env"]}
    assert environment["TRAINYARD_CA_FILE"] == "/etc/trainyard/ca.pem"
    given = agent_settings(*(word.replace("$(SERVER)", environment["SERVER"]) for word in agent["args"]))
    assert (given.server, given.runtime) == (SERVER_URL, "kubernetes")


def test_unit_of_the_server_takes_its_options() -> None:
    text = UNIT.read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    python, dash_m, module, *words = shlex.split(line.removeprefix("ExecStart="))
    assert (Path(python).name, dash_m, module) == ("python", "-m", "trainyard_server")
    given = vars(server_main.READER.parser().parse_args(words))
    assert given["token_file"] == ["admin=${CREDENTIALS_DIRECTORY}/admin-token"]
    assert "LoadCredential=admin-token:" in text


def test_unit_of_the_server_is_what_systemd_knows_and_confines(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/trainyard/bin/python", sys.executable))
    for command in (("verify",), ("security", "--offline=true", "--threshold=20")):  # 2.0 of 10
        done = subprocess.run(["systemd-analyze", *command, str(unit)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown" not in done.stderr
