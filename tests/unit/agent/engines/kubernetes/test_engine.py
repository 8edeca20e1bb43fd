"""An agent of a cluster as it starts: its identity, its own image, and settings that name what is not there."""

import base64
import ssl
from pathlib import Path
from typing import Any

import pytest

from beds.fake_cluster import NAMESPACE, FakeCluster, Fault, fake_cluster
from beds.open_engines import agent_settings
from trainyard_agent.engines.contract import SettingsRefused
from trainyard_agent.engines.kubernetes import engine
from trainyard_agent.engines.kubernetes.api.connection import KubeConnection
from trainyard_agent.engines.kubernetes.engine import image_of_agent
from trainyard_agent.settings import AgentSettings

QUEUES = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/localqueues"


def settings_on(api: FakeCluster, state_dir: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> AgentSettings:
    connection = KubeConnection(api.url, ssl.create_default_context(), None, NAMESPACE)
    monkeypatch.setattr(engine, "connect", lambda *_: connection)
    return agent_settings("--doctor", "--state-dir", str(state_dir), "--runtime", "kubernetes", *more)


def problems(settings: AgentSettings) -> list[str]:
    return [finding.found for finding in engine.ENGINE.examine(settings) if finding.check == "settings"]


def encode(path: str, body: dict[str, Any]) -> None:
    """Keep the values of a Secret as an API server does."""
    if path.endswith("/secrets"):
        values = body.pop("stringData")
        body["data"] = {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def test_agent_without_a_directory_of_its_own_is_the_one_of_its_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_cluster() as api:
        api.webhook = encode
        first = engine.ENGINE.identity(settings_on(api, tmp_path / "first", monkeypatch))
        assert engine.ENGINE.identity(settings_on(api, tmp_path / "second", monkeypatch)) == first
        api.objects.clear()
        assert engine.ENGINE.identity(settings_on(api, tmp_path / "third", monkeypatch)).agent_id != first.agent_id


def test_namespace_that_is_not_there_is_refused_and_told_by_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fake_cluster() as api:
        settings = settings_on(api, tmp_path, monkeypatch)
        api.fail("POST", f"/namespaces/{NAMESPACE}/secrets", Fault(404))
        with pytest.raises(SettingsRefused, match=f"has no namespace {NAMESPACE}.* Name an existing one with --names"):
            engine.ENGINE.identity(settings)
        assert problems(settings) == [f"--namespace {NAMESPACE}: the cluster has no such namespace."]
        api.fail("GET", f"/api/v1/namespaces/{NAMESPACE}", Fault(403))
        assert problems(settings) == []


def test_queue_that_is_not_there_is_told_by_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_cluster() as api:
        settings = settings_on(api, tmp_path, monkeypatch, "--local-queue", "team-a")
        api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        assert "the cluster has no Kueue" in "".join(problems(settings))
        api.groups = {"kueue.x-k8s.io/v1beta2": ["workloads", "localqueues"]}
        lacks = f"--local-queue team-a: the namespace {NAMESPACE} has no such LocalQueue."
        assert problems(settings) == [f"{lacks} There is none: make one."]
        api.create(QUEUES, {"metadata": {"name": "shared"}})
        assert problems(settings) == [f"{lacks} There are: shared."]
        api.create(QUEUES, {"metadata": {"name": "team-a"}})
        assert problems(settings) == []


def pod(*containers: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "agent-1"}, "spec": {"containers": list(containers)}}


def container(name: str, *words: str, args: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "image": f"image-of-{name}", "command": list(words), "args": list(args)}


PROXY, START = container("istio-proxy"), ("python3", "-m", "trainyard_agent")


@pytest.mark.parametrize(
    ("found", "name"),
    [
        (pod(container("worker")), "worker"),
        (pod(PROXY, container("agent", *START)), "agent"),
        (pod(container("old", *START), container("agent", *START)), "agent"),
        (pod(PROXY, container("worker", *START)), "worker"),
        (pod(PROXY, container("worker", args=START)), "worker"),
    ],
    ids=["alone", "by name", "by name, among several", "by command", "by arguments"],
)
def test_image_of_the_agent_is_that_of_its_own_container(found: dict[str, Any], name: str) -> None:
    assert image_of_agent(found) == f"image-of-{name}"


def test_pod_in_which_nobody_can_tell_the_agent_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingsRefused, match=r"the containers istio-proxy, worker, and none is called agent\. .*init"):
        image_of_agent(pod(PROXY, container("worker", "/start.sh")))
