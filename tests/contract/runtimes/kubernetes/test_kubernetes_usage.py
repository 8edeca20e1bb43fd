"""Usage of pods by metrics.k8s.io: a resource of the test's own takes the place of a metrics server's."""

from collections.abc import Iterator

import httpx
import pytest

from beds.kubernetes.bed import Bed
from beds.kubernetes.kube_api import KubeApi, Refused
from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import FOREVER, Driver, KubernetesLab
from trainyard_agent.engines.kubernetes.capacity import metrics
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.runtimes.use import ReplicaUse

pytestmark = pytest.mark.long

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN = unique_run("1")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture
def api(kubernetes: Bed) -> Iterator[KubeApi]:
    """The cluster, in which such measurements can be written down."""
    name = f"pods.{metrics.GROUP}"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    spec = {
        "group": metrics.GROUP,
        "scope": "Namespaced",
        "names": {"plural": "pods", "singular": "pod", "kind": "PodMetrics"},
        "versions": [version],
    }
    approved = {"api-approved.kubernetes.io": "unapproved, for a test"}
    with KubeApi(kubernetes.admin) as api:
        api.create(DEFINITIONS, {"metadata": {"name": name, "annotations": approved}, "spec": spec})
        yield api
        api.delete(f"{DEFINITIONS}/{name}")


def test_usage_is_what_the_cluster_measures_of_the_program(kubernetes_lab: KubernetesLab, api: KubeApi) -> None:
    driver, namespace = Driver(kubernetes_lab), kubernetes_lab.client.namespace
    driver.until(lambda: kubernetes_lab.client.has_group(metrics.GROUP))
    assert not driver.runtime.traits.measures_usage
    assert kubernetes_lab.reopen().traits.measures_usage

    driver.start_and_wait(RUN, {CHIEF: FOREVER, WORKER: FOREVER})
    measured = {
        "apiVersion": f"{metrics.GROUP}/v1beta1",
        "kind": "PodMetrics",
        "metadata": {"name": objects.pod_name(RUN, CHIEF), "labels": kubernetes_lab.labels},
        "containers": [
            {"name": "sidecar", "usage": {"cpu": "9", "memory": "9Gi"}},
            {"name": objects.CONTAINER, "usage": {"cpu": "1500m", "memory": "2Ki"}},
        ],
    }

    def is_written() -> bool:
        try:
            api.create(f"/apis/{metrics.GROUP}/v1beta1/namespaces/{namespace}/pods", measured)
        except Refused as refused:
            if refused.code != httpx.codes.NOT_FOUND:
                raise
            return False  # the definition is not in force yet
        return True

    driver.until(is_written)
    assert driver.usage(RUN, CHIEF) == ReplicaUse(0.0, 2048, 1.5)
    assert driver.runtime.usage(RUN, WORKER) is None

    driver.runtime.stop(RUN, 5.0)
    driver.wait_for_exits(RUN)
    assert driver.runtime.usage(RUN, CHIEF) is None
