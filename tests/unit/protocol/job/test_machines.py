from pathlib import Path

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.machines import Resources, config_of, default_catalog, gang, load_catalog
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.pod_settings import PodSettings, PodToleration

CATALOG = default_catalog()


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ("BASIC", {"master": ("n1-standard-4", 1)}),
        ("STANDARD_1", {"master": ("n1-highcpu-8", 1), "worker": ("n1-highcpu-8", 4), "ps": ("n1-standard-4", 3)}),
        ("PREMIUM_1", {"master": ("n1-highcpu-16", 1), "worker": ("n1-highcpu-16", 19), "ps": ("n1-highmem-8", 11)}),
        ("BASIC_GPU", {"master": ("standard_gpu", 1)}),
        ("BASIC_TPU", {"master": ("n1-standard-4", 1), "worker": ("cloud_tpu", 1)}),
    ],
)
def test_gang_of_a_scale_tier_is_what_the_service_gave(tier: str, expected: dict[str, tuple[str, int]]) -> None:
    replicas = gang(parse_training_input({"scaleTier": tier}), CATALOG)
    found: dict[str, tuple[str, int]] = {}
    for replica in replicas:
        found[replica.task.type] = (replica.machine_type, found.get(replica.task.type, ("", 0))[1] + 1)
    assert found == expected
    assert replicas[0].task == Task("master", 0)


def test_gang_of_a_custom_job_has_resources_and_accelerators_of_its_types_legacy_ones_among_them() -> None:
    training_input = parse_training_input(
        {
            "scaleTier": "CUSTOM",
            "masterType": "n1-standard-8",
            "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_T4"}},
            "workerType": "n1-highmem-2",
            "workerCount": "2",
            "evaluatorType": "local-1",
            "evaluatorCount": 1,
        }
    )
    assert [(r.task.name, r.resources) for r in gang(training_input, CATALOG)] == [
        ("master-replica-0", Resources(8, 30_000_000_000, "NVIDIA_TESLA_T4", 2)),
        ("worker-replica-0", Resources(2, 13_000_000_000)),
        ("worker-replica-1", Resources(2, 13_000_000_000)),
        ("evaluator-replica-0", Resources(1, 2_000_000_000)),
    ]
    (legacy,) = gang(parse_training_input({"scaleTier": "CUSTOM", "masterType": "complex_model_l_gpu"}), CATALOG)
    assert legacy.resources == Resources(32, 120_000_000_000, "NVIDIA_TESLA_K80", 8)


def test_images_of_the_other_task_types_default_to_the_master() -> None:
    training_input = parse_training_input(
        {
            "masterConfig": {"imageUri": "a"},
            "workerConfig": {"containerArgs": ["x"]},
            "evaluatorConfig": {"imageUri": "b"},
        }
    )
    assert config_of(training_input, "worker").image_uri == "a"
    assert config_of(training_input, "worker").container_args == ("x",)
    assert config_of(training_input, "ps").image_uri == "a"
    assert config_of(training_input, "evaluator").image_uri == "b"


@pytest.mark.parametrize(
    ("text", "says"),
    [("machineTypes: {x: {family: site, vcpus: four, memoryGb: 1}}", "machineTypes.x.vcpus"),
     ("machineTypes:\n  x: {family: site, vcpus: 4}", ":2: machineTypes.x.memoryGb"), ("machines: {}",
     ":1: machines: there is no such entry; allowed: scaleTiers, machineTypes, kubernetes, engineOptions."),
     ("kubernetes:\n  accelerators:\n    T4: {nodes: 1}",
     ":3: kubernetes.accelerators.T4.nodes: there is no such entry; allowed: resource, nodeSelector."),
     ("kubernetes: {tolerations: [{key: a}, {value: b}]}", "kubernetes.tolerations.1: without a key"),
     ("kubernetes: {runAsUser: 0}", "greater than or equal to 1"),
     ("scaleTiers: {BASIC: {master: {machineType: nope}}}", "'nope'"), ("engineOptions:\n  slurm:\n    qos: high",
     ':3: engineOptions.slurm.qos: must be a list of the allowed values, or "*" for any.'),
     ("engineOptions:\n  slurm: {partition: [a]}",
     ":2: engineOptions.slurm.partition: there is no such entry; allowed: account,"),
     ("engineOptions:\n  kubernetes:\n    capabilities: '*'",
     ":3: engineOptions.kubernetes.capabilities: must list what is allowed"),
     ("engineOptions:\n  kubernetes:\n    serviceAccount: ['*']",
     ":3: engineOptions.kubernetes.serviceAccount: must list what"),
     ("engineOptions:\n  kubernetes:\n    labels:\n      team: vision",
     ":4: engineOptions.kubernetes.labels.team: must be a list")],
)  # fmt: skip
def test_site_file_that_is_wrong_is_named_with_the_entry(tmp_path: Path, text: str, says: str) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        load_catalog(site)
    assert str(site) in caught.value.message
    assert says in caught.value.message


def test_pods_get_what_all_types_have_but_for_what_their_own_says(tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    site.write_text(
        "kubernetes:\n"
        "  imagePullSecrets: [registry]\n"
        "  nodeSelector: {pool: training}\n"
        "  accelerators: {nvidia_h100: {resource: example.com/gpu, nodeSelector: {gpu: h100}}}\n"
        "machineTypes:\n"
        "  spot: {family: site, vcpus: 4, memoryGb: 8, kubernetes: {nodeSelector: {pool: spot}, runAsUser: 1000,\n"
        "    tolerations: [{key: spot, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]}}\n"
    )
    catalog = load_catalog(site)
    spot = catalog.pod_settings("spot", "NVIDIA_H100")
    assert spot == PodSettings(
        accelerator_resource="example.com/gpu",
        node_selector={"pool": "spot", "gpu": "h100"},
        tolerations=(PodToleration(key="spot", operator="Exists", effect="NoExecute", toleration_seconds=5),),
        image_pull_secrets=("registry",),
        run_as_user=1000,
    )
    assert catalog.pod_settings("gone", "") == PodSettings(
        image_pull_secrets=("registry",), node_selector={"pool": "training"}
    )
