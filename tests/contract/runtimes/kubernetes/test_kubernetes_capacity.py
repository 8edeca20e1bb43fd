"""The capacity of a real cluster, beside other people's pods."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.kubernetes.kube_api import KubeApi
from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import FOREVER, Driver, KubernetesLab, order
from trainyard_agent.engines.kubernetes.api.access import CAPACITY_RULES
from trainyard_agent.engines.kubernetes.capacity.capacity_reader import NoCapacity, read_capacity

pytestmark = pytest.mark.long

CHIEF = "master-replica-0"


@contextmanager
def made(api: KubeApi, path: str, body: dict[str, Any]) -> Iterator[None]:
    api.create(path, body)
    try:
        yield
    finally:
        api.delete(f"{path}/{body['metadata']['name']}", gracePeriodSeconds="0")


def test_capacity_is_room_on_nodes_or_else_in_the_quota_of_the_namespace(
    kubernetes: Bed, kubernetes_lab: KubernetesLab
) -> None:
    client, driver = kubernetes_lab.client, Driver(kubernetes_lab)
    namespace, group = client.namespace, "rbac.authorization.k8s.io"
    here, roles = f"/api/v1/namespaces/{namespace}", f"/apis/{group}/v1"
    limits = {"cpu": "1", "memory": "64Mi"}
    container = {"name": "c", "image": BASE_IMAGE, "command": ["sleep", "1000"], "resources": {"limits": limits}}
    other = {"metadata": {"name": "other"}, "spec": {"containers": [container]}}
    hard = {"requests.cpu": "8", "requests.memory": "10G"}
    quota = {"metadata": {"name": "all"}, "spec": {"hard": hard}}
    role = {"metadata": {"name": namespace}, "rules": CAPACITY_RULES}
    binding = {
        "metadata": {"name": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": namespace, "namespace": namespace}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": namespace},
    }

    def vcpus() -> int:
        return read_capacity(client).vcpus

    def has_pools() -> bool:
        """Whether the agent may list the nodes: the API server's watch of the rights takes a moment."""
        with suppress(NoCapacity):
            return len(read_capacity(client).pools) > 0
        return False

    with pytest.raises(NoCapacity, match="has no ResourceQuota"):
        read_capacity(client)
    with KubeApi(kubernetes.admin) as api:
        with made(api, f"{here}/resourcequotas", quota):
            driver.until(lambda: api.get(f"{here}/resourcequotas/all").get("status", {}).get("hard"))
            run = order(unique_run("1"), CHIEF)
            driver.runtime.place(run)
            launch = replace(driver.lab.launch(CHIEF, FOREVER), vcpus=1, memory_bytes=64 << 20)
            driver.runtime.start(run.run_id, [launch])
            driver.until(lambda: driver.texts(run.run_id, CHIEF))
            assert (vcpus(), read_capacity(client).memory_bytes) == (8, 10 * 10**9)
            with made(api, f"{here}/pods", other):
                driver.until(lambda: vcpus() == 7)

        with made(api, f"{roles}/clusterroles", role), made(api, f"{roles}/clusterrolebindings", binding):
            driver.until(has_pools)
            before = vcpus()
            driver.runtime.remove(run.run_id)
            assert vcpus() == before
            with made(api, f"{here}/pods", other):
                driver.until(lambda: vcpus() == before - 1)
