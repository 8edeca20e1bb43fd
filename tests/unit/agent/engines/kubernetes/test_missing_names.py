"""Settings of an agent that name a namespace or a queue which the cluster does not have."""

import ssl
from pathlib import Path

import pytest

from beds.fake_cluster import NAMESPACE, FakeCluster, Fault, fake_cluster
from beds.open_engines import agent_settings
from trainyard_agent.engines.contract import SettingsRefused
from trainyard_agent.engines.kubernetes import engine
from trainyard_agent.engines.kubernetes.api.connection import KubeConnection
from trainyard_agent.settings import AgentSettings

QUEUES = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/localqueues"


def settings_on(api: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> AgentSettings:
    connection = KubeConnection(api.url, ssl.create_default_context(), None, NAMESPACE)
    monkeypatch.setattr(engine, "connect", lambda *_: connection)
    return agent_settings("--doctor", "--state-dir", str(tmp_path), "--runtime", "kubernetes", *more)


def problems(settings: AgentSettings) -> list[str]:
    findings = engine.ENGINE.examine(settings)
    return [finding.found for finding in findings if finding.check == "settings"]


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
