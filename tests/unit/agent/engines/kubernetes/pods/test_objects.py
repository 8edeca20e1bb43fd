"""A run as objects."""

from dataclasses import replace

from contract.runtimes.runtime_labs import order
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.runtimes.base import Keep, Launch, Mount, SecretFile
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.pod_settings import PodSettings, PodToleration

CHIEF, WORKER, RUN = "master-replica-0", "worker-replica-1", "AB" * 16
LAUNCH = Launch(WORKER, ("-c", "echo $$ $(HOME)"), {"PRICE": "$5"}, (), 1 << 30, image="i", entrypoint=("sh",))
OWNER = objects.PodOwner("agent")


def test_text_reaches_the_program_as_it_is() -> None:
    container = objects.pod(OWNER, order(RUN, CHIEF, WORKER), LAUNCH, "uid")["spec"]["containers"][0]
    assert container["args"] == ["-c", "echo $$$$ $$(HOME)"]
    assert {"name": "PRICE", "value": "$$5"} in container["env"]


def test_program_that_is_kept_is_started_by_a_shell() -> None:
    launch = replace(LAUNCH, packages="claim/env", keep=Keep(60, "j"))
    container = objects.pod(OWNER, order(RUN, CHIEF, WORKER), launch, "uid")["spec"]["containers"][0]
    words = [word.replace("$$", "$") for word in (*container["command"], *container["args"])]
    packaged = objects.pod(OWNER, order(RUN, CHIEF, WORKER), replace(launch, keep=None), "uid")
    plain = packaged["spec"]["containers"][0]
    shell = [*plain["command"], *(word.replace("$$", "$") for word in plain["args"])]
    assert (words[:2], words[3]) == (["/bin/sh", "-c"], "trainyard")
    assert words[4:] == shell


def test_secrets_are_in_no_pod() -> None:
    file = SecretFile("key", "/run/key", "KEY", "private")
    launch = replace(LAUNCH, secrets={"TOKEN": "hidden"}, secret_files=(file,))
    run = order(RUN, CHIEF, WORKER)
    assert objects.secret(OWNER, run, "uid", launch)["stringData"] == {"variable-0": "hidden", "file-0": "private"}
    pod = objects.pod(OWNER, run, launch, "uid")
    assert not [value for value in ("hidden", "private") if value in str(pod)]
    container = pod["spec"]["containers"][0]
    reference = {"secretKeyRef": {"name": objects.run_name(RUN), "key": "variable-0"}}
    assert {"name": "TOKEN", "valueFrom": reference} in container["env"]
    assert {"name": "secrets", "mountPath": "/run/key", "subPath": "file-0", "readOnly": True} in container[
        "volumeMounts"
    ]


def test_mounts_are_volumes_and_a_claim_is_one_whatever_is_mounted_of_it() -> None:
    mounts = (
        Mount("a", "datasets/a/v2", "/data", directories={"TRAINYARD_MOUNT_A": ""}),
        Mount("b", "datasets", "/b", False),
        Mount("c", "jobs/shared", "/c"),
        Mount("d", "/srv/d", "/d"),
        Mount("cache", "/srv/caches/p", "/opt/cache", False, {"HF_HOME": "huggingface"}),
    )
    launch = replace(LAUNCH, job_dir="/mnt/jobs/x", job_dir_source="jobs/x", mounts=mounts)
    spec = objects.pod(OWNER, order(RUN, CHIEF, WORKER), launch, "uid")["spec"]
    container = spec["containers"][0]
    assert spec["volumes"][1:] == [
        {"name": "job-dir", "persistentVolumeClaim": {"claimName": "jobs"}},
        {"name": "mount-0", "persistentVolumeClaim": {"claimName": "datasets"}},
        {"name": "mount-3", "hostPath": {"path": "/srv/d", "type": "Directory"}},
        {"name": "mount-4", "hostPath": {"path": "/srv/caches/p", "type": "DirectoryOrCreate"}},
    ]
    assert container["volumeMounts"][2:] == [
        {"name": "mount-0", "mountPath": "/data", "readOnly": True, "subPath": "a/v2"},
        {"name": "mount-0", "mountPath": "/b", "readOnly": False},
        {"name": "job-dir", "mountPath": "/c", "readOnly": True, "subPath": "shared"},
        {"name": "mount-3", "mountPath": "/d", "readOnly": True},
        {"name": "mount-4", "mountPath": "/opt/cache", "readOnly": False},
    ]
    for name, value in (("TRAINYARD_MOUNT_A", "/data"), ("HF_HOME", "/opt/cache/huggingface")):
        assert {"name": name, "value": value} in container["env"]


def test_pod_gets_what_the_site_says_and_a_user_without_capabilities() -> None:
    settings = PodSettings(
        accelerator_resource="example.com/gpu",
        node_selector={"pool": "spot"},
        tolerations=(PodToleration(key="spot", operator="Exists"),),
        priority_class="low",
        image_pull_secrets=("registry",),
        run_as_user=1000,
        runtime_class="nvidia",
    )
    launch = replace(LAUNCH, accelerator_count=2, pod=settings)
    spec = objects.pod(OWNER, order(RUN, CHIEF, WORKER), launch, "uid")["spec"]
    container = spec["containers"][0]
    assert container["resources"]["limits"]["example.com/gpu"] == "2"
    assert spec["nodeSelector"] == {"pool": "spot"}
    assert spec["tolerations"] == [
        {"key": "spot", "operator": "Exists"},
        {"key": "example.com/gpu", "operator": "Exists"},
    ]
    assert (spec["priorityClassName"], spec["runtimeClassName"]) == ("low", "nvidia")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert {"runAsUser": 1000, "runAsNonRoot": True}.items() <= spec["securityContext"].items()
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_pod_gets_the_options_of_its_job_beside_what_the_site_and_the_service_say() -> None:
    options = {
        "labels": {"team": "vision"},
        "annotations": {"example.com/net": "rdma"},
        "nodeSelector": {"pool": "large", "zone": "a"},
        "serviceAccount": "trainer",
        "resources": {"rdma/hca": 2, "nvidia.com/gpu": 8},
        "capabilities": ["IPC_LOCK", "CHOWN"],
    }
    training_input = parse_training_input({"engineOptions": {"kubernetes": options}})
    run = order(RUN, CHIEF, WORKER)
    asking = run.model_copy(update={"training_input": training_input})
    site = PodSettings(node_selector={"pool": "spot"})
    launch = replace(LAUNCH, accelerator_count=1, accelerator_type="NVIDIA_L4", pod=site)
    plain, pod = (objects.pod(OWNER, one, launch, "uid") for one in (run, asking))
    assert pod["metadata"]["labels"] == {**plain["metadata"]["labels"], "team": "vision"}
    assert pod["metadata"]["annotations"] == {**plain["metadata"]["annotations"], "example.com/net": "rdma"}
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["nodeSelector"] == {"pool": "spot", "zone": "a"}
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == ("trainer", True)
    amounts = {"memory": str(1 << 30), "nvidia.com/gpu": "1", "rdma/hca": "2"}
    assert container["resources"] == {"limits": amounts, "requests": amounts}
    capabilities = container["securityContext"]["capabilities"]
    assert capabilities["drop"] == ["ALL"]
    assert capabilities["add"] == [
        *plain["spec"]["containers"][0]["securityContext"]["capabilities"]["add"],
        "IPC_LOCK",
    ]
    restricted = replace(launch, pod=PodSettings(run_as_user=1000))
    (container,) = objects.pod(OWNER, asking, restricted, "uid")["spec"]["containers"]
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK", "CHOWN"]
