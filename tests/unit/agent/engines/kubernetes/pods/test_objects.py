"""A run as objects."""

from dataclasses import replace

from contract.runtimes.runtime_labs import order
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.runtimes.base import Launch, SecretFile
from trainyard_protocol.job.pod_settings import PodSettings, PodToleration

CHIEF, WORKER, RUN = "master-replica-0", "worker-replica-1", "AB" * 16
LAUNCH = Launch(WORKER, ("-c", "echo $$ $(HOME)"), {"PRICE": "$5"}, (), 1 << 30, image="i", entrypoint=("sh",))
OWNER = objects.PodOwner("agent")


def test_text_reaches_the_program_as_it_is() -> None:
    container = objects.pod(OWNER, order(RUN, CHIEF, WORKER), LAUNCH, "uid")["spec"]["containers"][0]
    assert container["args"] == ["-c", "echo $$$$ $$(HOME)"]
    assert {"name": "PRICE", "value": "$$5"} in container["env"]


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


def test_replicas_find_each_other_by_names_of_their_service_and_take_what_was_ordered() -> None:
    launch = replace(LAUNCH, vcpus=4, accelerator_type="NVIDIA_TESLA_T4", accelerator_count=2)
    pod = objects.pod(OWNER, order(RUN, CHIEF, WORKER), launch, "uid")
    address = objects.addresses(order(RUN, CHIEF, WORKER))[WORKER]
    assert address == f"{pod['spec']['hostname']}.{pod['spec']['subdomain']}:2222"
    resources = pod["spec"]["containers"][0]["resources"]
    assert resources["requests"] == resources["limits"] == {"memory": str(1 << 30), "cpu": "4", "nvidia.com/gpu": "2"}
    assert pod["spec"]["automountServiceAccountToken"] is False


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
