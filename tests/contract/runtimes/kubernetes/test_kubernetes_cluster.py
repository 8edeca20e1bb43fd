"""Names of peers, capacity, usage, volumes and the end without an agent, of runs on a real cluster."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.kubernetes.kube_api import KubeApi, Refused
from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import FOREVER, Driver, KubernetesLab, Program, order
from trainyard_agent.engines.kubernetes.api.access import CAPACITY_RULES, RULES
from trainyard_agent.engines.kubernetes.capacity import metrics
from trainyard_agent.engines.kubernetes.capacity.capacity_reader import NoCapacity, read_capacity
from trainyard_agent.engines.kubernetes.engine import secret_of
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import JobDirClaim, PodJobDirs
from trainyard_agent.host.identity import Identity
from trainyard_agent.main import main
from trainyard_agent.runtimes.use import ReplicaUse
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.states import Reason

pytestmark = pytest.mark.long
CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN, NEXT = unique_run("1"), unique_run("2")
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def ends(driver: Driver, run: str) -> dict[str, tuple[int | None, Reason]]:
    reports = driver.wait_for_exits(run)
    return {task: (one.exit.code, one.exit.reason) for task, one in reports.items() if one.exit is not None}


def test_first_look_up_of_each_replica_finds_all_others(kubernetes_lab: KubernetesLab) -> None:
    """Those that wait for one without a node say so, and are stopped before they start."""
    driver = Driver(kubernetes_lab)
    kubernetes_lab.init_image = BASE_IMAGE
    kubernetes_lab.reopen()
    names = [address.partition(":")[0] for address in objects.addresses(order(RUN, CHIEF, WORKER)).values()]
    looks_up = Program(shell="\n".join(f"getent hosts {name} || exit 1" for name in names), code=0)
    driver.start(RUN, {CHIEF: looks_up, WORKER: looks_up})
    assert ends(driver, RUN) == dict.fromkeys((CHIEF, WORKER), (0, Reason.COMPLETED))

    driver.place(NEXT, CHIEF, WORKER)
    chief, worker = (driver.lab.launch(task, FOREVER) for task in (CHIEF, WORKER))
    driver.runtime.start(NEXT, [chief, replace(worker, vcpus=10_000, memory_bytes=1 << 20)])
    driver.until(lambda: driver.reports(NEXT)[CHIEF].waits == "waits for peers")
    assert "Insufficient cpu" in driver.reports(NEXT)[WORKER].waits
    driver.runtime.stop(NEXT, 5.0, Reason.GIVEN_BACK)
    assert ends(driver, NEXT) == dict.fromkeys((CHIEF, WORKER), (None, Reason.GIVEN_BACK))


def test_stop_all_ends_the_pods_of_a_namespace_and_the_doctor_knows_whose_they_are(
    kubernetes: Bed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unique_run("1")
    kubeconfig = kubernetes.with_role(f"stop-{uuid.uuid4().hex[:8]}", RULES)
    lab = KubernetesLab(tmp_path / "lab", kubeconfig)
    driver = Driver(lab)
    driver.start_and_wait(run, {CHIEF: FOREVER, WORKER: FOREVER})

    def agent(directory: str, *words: str) -> str:
        cluster = "--runtime", "kubernetes", "--kubeconfig", str(kubeconfig)
        assert main(["--state-dir", str(tmp_path / directory), *cluster, *words]) == 0
        return capsys.readouterr().out

    *_, orphans = json.loads(agent("new", "--doctor"))
    assert orphans["status"] == "problem"
    assert f"of the run {run[:12]} is orphaned: it is of another agent, {lab.owner.agent_id}." in orphans["found"]
    assert "Stopped 0 replicas" in agent("new", "--stop-all")

    lab.client.create("secrets", secret_of(Identity(lab.owner.agent_id, "key")))
    found = json.loads(agent("new", "--doctor"))
    assert [(one["check"], one["status"]) for one in found] == [
        *(("kubernetes", "ok"), ("permissions", "ok"), ("orphans", "ok"))
    ]
    assert "Stopped 2 replicas" in agent("new", "--stop-all", "--grace", "3")
    lab.reopen()
    ends = {report.exit.reason for report in driver.reports(run).values() if report.exit is not None}
    assert ends == {Reason.HOST_SHUTDOWN}
    lab.end()


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


@pytest.fixture
def claim(kubernetes: Bed, kubernetes_lab: KubernetesLab) -> Iterator[str]:
    """A claim of a volume that both nodes have."""
    name, namespace = f"volume-{uuid.uuid4().hex[:8]}", kubernetes_lab.client.namespace
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **common,
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(kubernetes.admin.parent / name), "type": "DirectoryOrCreate"},
        "claimRef": {"name": name, "namespace": namespace},
    }
    asked = {**common, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    with KubeApi(kubernetes.admin) as api:
        api.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume})
        api.create(claims, {"metadata": {"name": name}, "spec": asked})
        yield name
        api.delete(f"{claims}/{name}")
        api.delete(f"/api/v1/persistentvolumes/{name}")


def test_next_run_finds_the_checkpoint_of_the_first_and_nothing_of_other_people(
    kubernetes_lab: KubernetesLab, claim: str
) -> None:
    driver = Driver(kubernetes_lab)
    claims = PodJobDirs([JobDirClaim.parse(f"{claim}=/mnt/jobs")])

    def output(run_id: str, owner: str, shell: str) -> list[str]:
        where = TrainingInput(job_dir=f"/mnt/jobs/p/{owner}/digits/1")
        run = order(run_id, CHIEF).model_copy(update={"training_input": where, "owner": owner})
        mount = claims.mount(run)
        assert mount is not None
        launch = driver.lab.launch(CHIEF, Program(code=0, shell=shell))
        driver.runtime.place(run)
        driver.runtime.start(run_id, [replace(launch, job_dir=mount.target, job_dir_source=mount.source)])
        driver.wait_for_exits(run_id)
        return driver.wait_for_log(run_id, CHIEF)

    save = "mkdir -p /mnt/jobs/p/ann/digits/1; cd /mnt/jobs/p/ann/digits/1; echo step 7 >checkpoint; ls"
    assert output(unique_run("1"), "ann", save) == ["checkpoint"]
    look = "cat /mnt/jobs/p/ann/digits/1/checkpoint; find /mnt/jobs -type f"
    assert output(unique_run("2"), "ann", look) == ["step 7", "/mnt/jobs/p/ann/digits/1/checkpoint"]
    assert output(unique_run("3"), "bob", "find /mnt/jobs") == [
        "/mnt/jobs",
        "/mnt/jobs/p",
        "/mnt/jobs/p/bob",
        "/mnt/jobs/p/bob/digits",
    ]
