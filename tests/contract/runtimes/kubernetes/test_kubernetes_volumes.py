"""Job-dirs of pods in a volume that a namespace claims."""

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from beds.kubernetes.bed import Bed
from beds.kubernetes.kube_api import KubeApi
from beds.run_ids import unique_run
from contract.runtimes.runtime_labs import Driver, KubernetesLab, Program, order
from trainyard_agent.engines.kubernetes.staging.pod_job_dirs import JobDirClaim, PodJobDirs
from trainyard_protocol.job.training_input import TrainingInput

pytestmark = pytest.mark.long

CHIEF = "master-replica-0"


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
