"""All objects of a run against the schemas of the oldest and the newest Kubernetes that is in use."""

from dataclasses import replace

import kubernetes_validate
import pytest

from contract.runtimes.runtime_labs import order
from trainyard_agent.engines.kubernetes.pods import objects, peers
from trainyard_agent.engines.kubernetes.staging import installation
from trainyard_agent.engines.kubernetes.staging.installation import Installation
from trainyard_agent.runtimes.base import Launch, Mount, SecretFile
from trainyard_agent.runtimes.installing import InstallLimits
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.pod_settings import PodSettings, PodToleration

CHIEF, RUN = "master-replica-0", "AB" * 16
VERSIONS = ["1.25", "1.37"]
"""The oldest and the newest: fields of `v1` stay once they are there."""
PLAIN = Launch(CHIEF, ("-c", "true"), {"A": "b"}, (), 1 << 30, image="i", entrypoint=("sh",), vcpus=2)
FULL = replace(
    PLAIN,
    accelerator_type="NVIDIA_L4",
    accelerator_count=1,
    job_dir="/mnt/jobs/a",
    job_dir_source="jobs/a",
    secrets={"TOKEN": "t"},
    secret_files=(SecretFile("key", "/run/key", "KEY", "k"),),
    mounts=(Mount("a", "datasets/a", "/data"), Mount("b", "/srv/b", "/b"), Mount("cache", "/srv/c", "/c", False)),
    pod=PodSettings(
        node_selector={"pool": "spot"},
        tolerations=(
            PodToleration(key="spot", value="yes", effect="NoExecute", toleration_seconds=5),
            PodToleration(operator="Exists"),
        ),
        priority_class="low",
        image_pull_secrets=("registry",),
        run_as_user=1000,
        runtime_class="nvidia",
    ),
)
OPTIONS = {
    "labels": {"team": "vision"},
    "annotations": {"k8s.v1.cni.cncf.io/networks": "rdma"},
    "nodeSelector": {"topology.kubernetes.io/zone": "a"},
    "serviceAccount": "trainer",
    "resources": {"rdma/hca": 1},
    "capabilities": ["IPC_LOCK"],
}
INSTALLATION = Installation(
    names=("a.whl",), limits=InstallLimits(), files=("plan.json",), environment={"A": "b"}, command=("python3",)
)


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_of_a_run_are_what_the_api_knows(version: str) -> None:
    owner, run = objects.PodOwner("agent"), order(RUN, CHIEF, "worker-replica-0")
    asking = run.model_copy(update={"training_input": parse_training_input({"engineOptions": {"kubernetes": OPTIONS}})})
    for found in (
        objects.root(owner, run),
        objects.service(owner, run, "uid"),
        objects.secret(owner, run, "uid", FULL),
        objects.pod(owner, run, PLAIN, "uid"),
        objects.pod(owner, asking, PLAIN, "uid"),
        objects.pod(owner, asking, FULL, "uid"),
        objects.pod(owner, run, FULL, "uid", peers.parts(run, FULL, "python")),
        objects.pod(owner, run, FULL, "uid", installation.parts(run, FULL, INSTALLATION)),
        installation.config(owner, run, "uid", [b"plan"]),
    ):
        assert kubernetes_validate.validate(found, version, strict=True) == version
