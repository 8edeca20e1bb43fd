"""The bed has roles, and leaves nothing. Tests of Kubernetes show that it is a cluster, and how it breaks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.kubernetes.bed import Bed
from beds.kubernetes.kube_api import KubeApi, Refused
from beds.kubernetes.machines import remaining, started_by, sweep, wait_until


@pytest.fixture
def api(kubernetes: Bed) -> Iterator[KubeApi]:
    with KubeApi(kubernetes.admin) as api:
        yield api


def test_role_allows_what_its_rules_list_and_in_its_namespace(kubernetes: Bed, api: KubeApi) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    with KubeApi(kubernetes.with_role("reader", rules)) as reader:
        assert reader.get("/api/v1/namespaces/reader/pods")["items"] == []
        for path in ("namespaces/reader/secrets", "namespaces/default/pods", "nodes"):
            with pytest.raises(Refused) as refused:
                reader.get(f"/api/v1/{path}")
            assert refused.value.code == 403
    api.delete("/api/v1/namespaces/reader")


def test_bed_of_a_killed_process_is_swept_and_one_in_use_is_not(kubernetes: Bed) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    killed = subprocess.Popen([sys.executable, "-m", "beds.kubernetes"], env=environment)

    def its_nodes_have_booted() -> bool:
        return Path("/tmp", started_by(killed.pid) or "none", "node-2.containerd.log").exists()

    try:
        wait_until(its_nodes_have_booted, "its nodes have booted", lambda: str(killed.poll() or ""))
        name = started_by(killed.pid)
        kinds = {what.split()[0] for what in remaining(name)}
    finally:
        killed.kill()
        killed.wait()
    assert kinds == {"process", "cgroup", "directory"}
    wait_until(lambda: not any(what.startswith("process") for what in remaining(name)), "its processes end")
    sweep()
    assert remaining(name) == []
    for node in kubernetes.nodes:
        kubernetes.wait_until_ready(node)
