"""Custom jobs as jobs, and errors back in the fields of the custom job."""

from typing import Any

import pytest

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.job.custom_job_training import check_given, create_request, renamed
from trainyard_protocol.job.custom_jobs import CustomJob
from trainyard_protocol.job.parsing import parse, parse_job

TENSORFLOW = "europe-docker.pkg.dev/vertex-ai/training/tf-gpu.2-12.py310:latest"
AT = "custom_job.job_spec"
POOL = f"{AT}.worker_pool_specs"


def parsed(body: dict[str, Any]) -> CustomJob:
    return parse(CustomJob, body, "custom_job")


def container(count: object = 1, **spec: Any) -> dict[str, Any]:
    machine = {"machineType": "n1-standard-8"}
    return {"machineSpec": machine, "replicaCount": count, "containerSpec": {"imageUri": "gcr.io/p/i:1", **spec}}


def package(count: object = 1, image: str = TENSORFLOW, **spec: Any) -> dict[str, Any]:
    program = {"executorImageUri": image, "packageUris": ["gs://b/t.tar.gz"], "pythonModule": "t.task", **spec}
    return {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": count, "pythonPackageSpec": program}


def job(*pools: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"displayName": "digits", "jobSpec": {"workerPoolSpecs": list(pools), **spec}}


def translated(body: dict[str, Any]) -> dict[str, Any]:
    """The training input, without the custom job in it."""
    request = create_request(parsed(body), "digits", "us-central1")
    parse_job(request)  # it is one that jobs may have
    sent: dict[str, Any] = request["trainingInput"]
    del sent["customJob"]
    return sent


def test_pools_become_chief_workers_parameter_servers_and_evaluators() -> None:
    gpu = {"acceleratorType": 5, "acceleratorCount": 2}  # by number, as clients of REST send it
    env = [{"name": "A", "value": "1"}]
    first = container(command=["python3", "t.py"], args=["--x"], env=env)
    workers = container("3", imageUri="gcr.io/p/other", env=env)
    workers["machineSpec"] |= gpu
    workers["diskSpec"] = {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200}
    scheduling = {
        "timeout": "3600s",
        "strategy": 4,
        "maxWaitDuration": "1800s",
        "restartJobOnWorkerRestart": True,
        "disableRetries": True,
    }
    body = job(
        first,
        workers,
        {},
        container(env=env),
        scheduling=scheduling,
        baseOutputDirectory={"outputUriPrefix": "gs://b/out"},
        serviceAccount="me@p",
        network="n",
        enableWebAccess=True,
        reservedIpRanges=["r"],
        tensorboard="",
    )
    assert translated(body | {"encryptionSpec": {"kmsKeyName": "k"}}) == {
        "scaleTier": "CUSTOM",
        "region": "us-central1",
        "useChiefInTfConfig": True,
        "masterType": "n1-standard-8",
        "masterConfig": {"imageUri": "gcr.io/p/i:1", "containerCommand": ["python3", "t.py"], "containerArgs": ["--x"]},
        "workerType": "n1-standard-8",
        "workerCount": "3",
        "workerConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_T4", "count": "2"},
         "diskConfig": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200}, "imageUri": "gcr.io/p/other"},
        "evaluatorType": "n1-standard-8",
        "evaluatorCount": "1",
        "evaluatorConfig": {"imageUri": "gcr.io/p/i:1"},
        "env": {"A": "1"},
        "jobDir": "gs://b/out",
        "scheduling": {"maxRunningTime": "3600s", "maxWaitTime": "1800s", "band": "BATCH", "disableRetries": True},
        "network": "n",
        "serviceAccount": "me@p",
        "enableWebAccess": True,
        "encryptionConfig": {"kmsKeyName": "k"},
    }  # fmt: skip


def test_images_of_vertex_become_runtime_versions_and_other_images_are_run() -> None:
    prefix = "us-docker.pkg.dev/vertex-ai/training"
    cases = {
        TENSORFLOW: ("2.15", ""),
        f"{prefix}/tf-cpu.2-15.py310:latest": ("2.15", ""),
        "gcr.io/cloud-aiplatform/training/tf-cpu.1-15": ("1.15", ""),
        f"{prefix}/tf-gpu.2-11.py310:latest": ("2.11", ""),
        f"{prefix}/pytorch-gpu.2-4.py310@sha256:0": ("torch", ""),
        f"{prefix}/tf-cpu.2-17.py310:latest": ("", f"{prefix}/tf-cpu.2-17.py310:latest"),
        f"{prefix}/xgboost-cpu.1-1": ("", f"{prefix}/xgboost-cpu.1-1"),
        "gcr.io/me/mine:1": ("", "gcr.io/me/mine:1"),
    }
    found = {}
    for image in cases:
        sent = translated(job(package(image=image, args=["--x", "1"]), package(2, image=image, args=["--x", "1"])))
        assert (sent["pythonModule"], sent["args"], sent["workerCount"]) == ("t.task", ["--x", "1"], "2")
        found[image] = sent.get("runtimeVersion", ""), sent.get("masterConfig", {}).get("imageUri", "")
    assert found == cases


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no pool": (job(), POOL),
    "five pools": (job(container(), {}, {}, {}, container()), POOL),
    "two chiefs": (job(container(2)), f"{POOL}[0].replica_count"),
    "an empty chief": (job({}, container()), f"{POOL}[0].machine_spec.machine_type"),
    "a pool without a count": (
        job(container(), {key: value for key, value in container().items() if key != "replicaCount"}),
        f"{POOL}[1].replica_count",
    ),
    "no machine": (job(container() | {"machineSpec": {}}), f"{POOL}[0].machine_spec.machine_type"),
    "no image": (job(container(imageUri="")), f"{POOL}[0].container_spec.image_uri"),
    "two programs": (job(container() | package()), f"{POOL}[0]"),
    "an image beside packages": (job(package(), container()), f"{POOL}[1].container_spec"),
    "another package": (job(package(), package(pythonModule="t.other")), f"{POOL}[1].python_package_spec"),
    "another environment": (job(container(), container(env=[{"name": "A", "value": "1"}])),
     f"{POOL}[1].container_spec.env"),
    "a reference": (job(package(env=[{"name": "A", "value": "$(HOME)/x"}])),
     f"{POOL}[0].python_package_spec.env[0].value"),
    "a TensorBoard": (job(container(), tensorboard="projects/p/x"), f"{AT}.tensorboard"),
    "a persistent resource": (job(container(), persistentResourceId="r"), f"{AT}.persistent_resource_id"),
    "a strategy": (job(container(), scheduling={"strategy": 5}), f"{AT}.scheduling.strategy"),
    "a file system": (job(container() | {"nfsMounts": [{}]}), f"{POOL}[0].nfs_mounts"),
    "a field that nobody knows": (job(container(), nodes=2), AT),
    "no name": ({**job(container()), "displayName": ""}, "custom_job.display_name"),
}  # fmt: skip


def test_what_cannot_be_done_is_refused_by_the_name_of_its_field() -> None:
    wrong = []
    for name, (body, field) in REFUSED.items():
        try:
            create_request(parsed(body), "digits", "here")
            wrong.append(f"{name}: accepted")
        except InvalidArgument as error:
            if field not in [violation.field for violation in error.violations]:
                wrong.append(f"{name}: {error.message}")
    assert not wrong, "\n".join(wrong)


def test_errors_of_a_job_have_the_fields_of_the_custom_job() -> None:
    images, packages = parsed(job(container(), container())), parsed(job(package()))
    cases = {
        ("master_type", "images"): f"{POOL}[0].machine_spec.machine_type",
        ("worker_count", "images"): f"{POOL}[1].replica_count",
        ("parameter_server_config.accelerator_config.count", "images"): f"{POOL}[2].machine_spec.accelerator_count",
        ("evaluator_config.accelerator_config", "images"): f"{POOL}[3].machine_spec.accelerator_type",
        ("worker_config.image_uri", "images"): f"{POOL}[1].container_spec.image_uri",
        ("master_config.container_args[0]", "images"): f"{POOL}[0].container_spec.args[0]",
        ("env", "images"): f"{POOL}[0].container_spec.env",
        ("master_config.image_uri", "packages"): f"{POOL}[0].python_package_spec.executor_image_uri",
        ("package_uris[1]", "packages"): f"{POOL}[0].python_package_spec.package_uris[1]",
        ("args[2]", "packages"): f"{POOL}[0].python_package_spec.args[2]",
        ("job_dir", "packages"): f"{AT}.base_output_directory.output_uri_prefix",
        ("scheduling.max_wait_time", "packages"): f"{AT}.scheduling.max_wait_duration",
        ("job.labels", "packages"): "custom_job.labels",
    }
    given = {"images": images, "packages": packages}
    found = {
        (field, kind): renamed(InvalidArgument(Violation(field, "is wrong")), given[kind]).violations[0].field
        for field, kind in cases
    }
    assert found == cases


def test_training_input_that_is_not_its_custom_job_is_refused() -> None:
    request = create_request(parsed(job(package())), "digits", "here")
    check_given(parse_job(request))
    request["trainingInput"] |= {"secrets": [{"name": "KEY"}]}  # beside it
    check_given(parse_job(request))
    request["trainingInput"] |= {"masterType": "n1-standard-8", "args": ["--more"]}
    with pytest.raises(InvalidArgument, match=r"custom_job Error: .* differ in args, master_type\."):
        check_given(parse_job(request))
    tuned = {"hyperparameters": {"params": []}, "masterType": "n1-standard-4", "args": []}
    del request["trainingInput"]["args"]
    request["trainingInput"] |= tuned
    with pytest.raises(InvalidArgument, match=r"differ in hyperparameters\."):
        check_given(parse_job(request))
    del request["trainingInput"]["region"]
    with pytest.raises(InvalidArgument, match=r"region Error: is required with customJob"):
        check_given(parse_job(request))
