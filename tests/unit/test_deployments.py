"""deploy/: the objects of a cluster are what Kubernetes knows, the units are what systemd knows, and they start
a server, an agent and a backup that take their options."""

import copy
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest

import trainyard_protocol
from beds.kubernetes.kustomize import DEPLOY, container, documents, named, objects
from beds.open_engines import agent_settings
from trainyard_agent.engines.kubernetes.api.access import CAPACITY_RULES, RULES
from trainyard_agent.engines.kubernetes.settings import KubernetesSettings
from trainyard_server import main as server_main

VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
UNIT = DEPLOY / "systemd/trainyard-server.service"
BACKUP, TIMER = (DEPLOY / f"systemd/trainyard-backup.{kind}" for kind in ("service", "timer"))
SERVER, AGENT = "trainyard-server", "trainyard-agent"
SERVER_URL = "https://trainyard-server.trainyard-server.svc:8470"


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_of_a_site_are_what_the_api_knows(version: str) -> None:
    for found in [*objects("kubernetes-site"), *documents(DEPLOY / "kubernetes/capacity.yaml")]:
        assert kubernetes_validate.validate(copy.deepcopy(found), version, strict=True) == version


def test_pods_have_no_root_and_write_to_volumes_alone() -> None:
    made = objects("kubernetes-site")
    for workload in named(made, "StatefulSet", SERVER), named(made, "Deployment", AGENT):
        assert workload["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
        closed = container(workload)["securityContext"]
        assert closed["readOnlyRootFilesystem"]
        assert closed["capabilities"] == {"drop": ["ALL"]}
        release = ".".join(trainyard_protocol.__version__.split(".")[:2])
        assert container(workload)["image"].endswith(f":{release}")


def test_server_of_a_cluster_takes_its_options_and_listens_where_its_service_leads() -> None:
    made = objects("kubernetes-site")
    server = container(named(made, "StatefulSet", SERVER))
    given = vars(server_main.READER.parser().parse_args(server["args"]))
    assert given["tls_cert"] == ["/etc/trainyard/tls/tls.crt"]
    mounted = {mount["mountPath"] for mount in server["volumeMounts"]}
    for files in (given["tls_cert"], given["tls_key"], [entry.split("=")[1] for entry in given["token_file"]]):
        assert {str(Path(file).parent) for file in files} <= mounted
    service = named(made, "Service", SERVER)
    host = "{name}.{namespace}.svc".format(**service["metadata"])
    assert f"https://{host}:{service['spec']['ports'][0]['port']}" == SERVER_URL
    assert server["ports"][0] == {"name": "https", "containerPort": 8470}


@pytest.mark.parametrize(
    ("name", "server", "ca_file"),
    [
        ("kubernetes", "https://trains.example.com:8470", None),
        ("kubernetes-site", SERVER_URL, Path("/etc/trainyard/ca.pem")),
    ],
)
def test_agent_of_a_cluster_has_the_settings_of_its_file(
    name: str, server: str, ca_file: Path | None, tmp_path: Path
) -> None:
    made = objects(name)
    deployment = named(made, "Deployment", AGENT)
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    pod, agent = deployment["spec"]["template"]["spec"], container(deployment)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounted = {mount["mountPath"]: volumes[mount["name"]] for mount in agent["volumeMounts"]}
    assert mounted["/etc/trainyard"]["secret"]["secretName"] == "trainyard-agent-token"
    settings = named(made, "ConfigMap", mounted["/etc/trainyard-agent"]["configMap"]["name"])
    (tmp_path / "agent.toml").write_text(settings["data"]["agent.toml"])
    given = agent_settings(*(word.replace("/etc/trainyard-agent", str(tmp_path)) for word in agent["args"]))
    assert (given.server, given.runtime, given.ca_file) == (server, "kubernetes", ca_file)
    assert given.token_file == Path("/etc/trainyard/token")


def test_settings_that_are_to_be_edited_are_those_of_the_agent(tmp_path: Path) -> None:
    text = (DEPLOY / "kubernetes/agent.toml").read_text()
    (tmp_path / "agent.toml").write_text(re.sub(r"^# (?=[a-z-]+ = )", "", text, flags=re.MULTILINE))
    given = agent_settings(
        f"--settings={tmp_path}/agent.toml", "--token-file=/t", "--state-dir=/s", "--runtime=kubernetes"
    )
    assert [str(file) for file in (given.ca_file, given.runtimes, given.mounts)] == [
        "/etc/trainyard/ca.pem",
        "/etc/trainyard-agent/runtimes.yaml",
        "/etc/trainyard-agent/mounts.yaml",
    ]
    assert len(given.of(KubernetesSettings).pool) == 1


def test_agent_may_do_what_it_calls_in_its_namespace_and_nothing_elsewhere() -> None:
    made = objects("kubernetes")
    assert named(made, "Role", AGENT)["rules"] == RULES
    binding, account = named(made, "RoleBinding", AGENT), named(made, "ServiceAccount", AGENT)
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account["metadata"]}]
    pod = named(made, "Deployment", AGENT)["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account["metadata"]["name"]
    assert not [one for one in made if one["kind"].startswith("Cluster")]
    role, _ = documents(DEPLOY / "kubernetes/capacity.yaml")
    assert role["rules"] == CAPACITY_RULES


def started(unit: Path) -> list[str]:
    """The words that a unit starts."""
    text = unit.read_text().replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    return shlex.split(line.removeprefix("ExecStart="))


def test_unit_of_the_server_takes_its_options() -> None:
    python, dash_m, module, *words = started(UNIT)
    assert (Path(python).name, dash_m, module) == ("python", "-m", "trainyard_server")
    given = vars(server_main.READER.parser().parse_args(words))
    assert given["token_file"] == ["admin=${CREDENTIALS_DIRECTORY}/admin-token"]
    assert "LoadCredential=admin-token:" in UNIT.read_text()


def test_units_are_what_systemd_knows_and_confines(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    units = [tmp_path / unit.name for unit in (UNIT, BACKUP, TIMER)]
    for unit in units:
        text = (UNIT.parent / unit.name).read_text()
        unit.write_text(text.replace("/opt/trainyard/bin/python", sys.executable))
    of_ten: list[str | Path] = ["security", "--offline=true", "--threshold=20", *units[:2]]  # at most 2.0
    for command in (["verify", *units], of_ten):
        done = subprocess.run(["systemd-analyze", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Unknown" not in done.stderr
