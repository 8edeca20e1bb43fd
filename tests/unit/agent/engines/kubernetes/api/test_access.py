"""The shipped objects of an agent in a cluster, and what the command makes of them."""

import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from beds.open_engines import agent_settings
from trainyard_agent.engines.kubernetes.api.access import CAPACITY_RULES, RULES
from trainyard_agent.engines.kubernetes.settings import KubernetesSettings
from trainyard_cli.commands.tree import trainyard
from trainyard_cli.main import run

SHIPPED = Path(__file__).parents[6] / "deploy/kubernetes"
TOKEN = "t" * 32


def shipped() -> list[dict[str, Any]]:
    resources = yaml.safe_load((SHIPPED / "kustomization.yaml").read_text())["resources"]
    return [one for name in resources for one in yaml.safe_load_all((SHIPPED / name).read_text())]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(trainyard, "trainyard", ["agent", "manifest", *words]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_manifest_gives_the_permissions_that_the_runtime_needs() -> None:
    (role,) = (one for one in shipped() if one["kind"] == "Role")
    assert role["rules"] == RULES
    assert not [one for one in shipped() if one["kind"].startswith("Cluster")]


def test_command_prints_the_shipped_objects(capsys: pytest.CaptureFixture[str]) -> None:
    server, image = "https://trains.example.com:8470", "registry.example.com/trainyard/agent:0.2"
    assert printed(capsys, "--server", server, "--image", image) == shipped()


def test_command_puts_token_namespace_and_options_where_they_belong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ca").write_text("PEM\n")
    images = "images: {jax: {image: 'registry/jax:1'}}\nversions: {'*': {cpu: jax}}\n"
    (tmp_path / "runtimes").write_text(images)
    volumes = "mounts: [{name: a, persistentVolumeClaim: datasets}]\n"
    (tmp_path / "mounts").write_text(volumes)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TOKEN}\n"))
    words = ["--server", "https://a.example", "--image", "mine:1", "--namespace", "team", "--token-file", "-"]
    options = ["--pool", "4x16x64", "--replica-env", "A=$(B)"]
    files = [word for name in ("runtimes", "mounts") for word in (f"--{name}", str(tmp_path / name))]
    objects = printed(capsys, *words, "--ca-file", str(tmp_path / "ca"), *files, *options)

    assert [one["kind"] for one in objects] == [
        *("Namespace", "ServiceAccount", "Role", "RoleBinding", "Secret", "ConfigMap", "ConfigMap", "Deployment")
    ]
    names = {one["metadata"].get("namespace") for one in objects[1:]}
    assert (objects[0]["metadata"]["name"], names) == ("team", {"team"})
    assert objects[3]["subjects"][0]["namespace"] == "team"
    assert objects[4]["stringData"] == {"token": TOKEN, "ca.pem": "PEM\n"}
    assert objects[5]["data"] == {"runtimes.yaml": images}
    assert objects[6]["data"] == {"mounts.yaml": volumes}
    pod = objects[7]["spec"]["template"]["spec"]
    configs = [volume["configMap"] for volume in pod["volumes"][-2:]]
    assert configs == [{"name": one["metadata"]["name"]} for one in objects[5:7]]
    (container,) = pod["containers"]
    environment = {one["name"]: one["value"] for one in container["env"]}
    assert (container["image"], environment["TRAINYARD_CA_FILE"]) == ("mine:1", "/etc/trainyard/ca.pem")
    assert "A=$$(B)" in container["args"]
    assert f"--runtimes={container['volumeMounts'][-2]['mountPath']}/runtimes.yaml" in container["args"]
    assert f"--mounts={container['volumeMounts'][-1]['mountPath']}/mounts.yaml" in container["args"]

    given = [word.replace("$(SERVER)", environment["SERVER"]).replace("$$", "$") for word in container["args"]]
    agent = agent_settings(*given)  # it is a command line of the agent
    assert (agent.server, agent.runtime, len(agent.of(KubernetesSettings).pool)) == (
        "https://a.example",
        "kubernetes",
        1,
    )


def test_address_that_pods_do_not_reach_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["agent", "manifest", "--server", "https://localhost:8470", "--image", "i"]
    assert run(trainyard, "trainyard", words) == 1
    assert "and pods cannot reach it" in capsys.readouterr().err


def test_rights_in_the_whole_cluster_are_a_file_of_their_own() -> None:
    role, _ = yaml.safe_load_all((SHIPPED / "capacity.yaml").read_text())
    assert role["rules"] == CAPACITY_RULES
