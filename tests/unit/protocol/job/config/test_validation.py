"""Validation rules across fields, with their messages."""

import pytest

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.config.placeholders import in_address, in_image
from trainyard_protocol.job.config.validation import check, checked_job
from trainyard_protocol.job.machines import default_catalog
from trainyard_protocol.job.parsing import parse_training_input

PACKAGE = {"pythonModule": "trainer.task"}
CUSTOM = {**PACKAGE, "scaleTier": "CUSTOM", "masterType": "n1-standard-8"}
T4 = "NVIDIA_TESLA_T4"
IMAGE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-8", "masterConfig": {"imageUri": "i"}}


def gpus(count: int | str, kind: str) -> dict[str, object]:
    """The config of replicas with accelerators."""
    return {"acceleratorConfig": {"count": count, "type": kind}}


TPU = {"workerType": "cloud_tpu", "workerCount": "1", "workerConfig": gpus("8", "TPU_V3")}


@pytest.mark.parametrize(
    "accepted",
    [
        PACKAGE,
        {**CUSTOM, **TPU},
        {  # as tensorflow_cloud sends it
            **IMAGE,
            "masterConfig": {
                "imageUri": "i",
                "acceleratorConfig": {"count": "0", "type": "ACCELERATOR_TYPE_UNSPECIFIED"},
            },
            **TPU,
            "workerConfig": {
                "imageUri": "i",
                "acceleratorConfig": {"count": "8", "type": "TPU_V2"},
                "tpuTfVersion": "2.1",
            },
            "use_chief_in_tf_config": True,
        },
        {**CUSTOM, "masterType": "cloud-tpu", "masterConfig": gpus(8, "TPU_V3")},  # as Vertex AI has them
        CUSTOM,
        IMAGE,
        {**CUSTOM, "workerType": "local-1", "workerCount": 1},
        {**CUSTOM, "workerType": "n1-standard-8"},  # no workers: the count is zero by default
        {**CUSTOM, "masterConfig": gpus(2, "nvidia-tesla-t4")},
        {**IMAGE, "masterConfig": {"imageUri": "i", "containerCommand": ["a"], "containerArgs": ["b"]}},
        {**IMAGE, "workerType": "n1-standard-8", "workerCount": 1, "workerConfig": {"containerArgs": ["b"]}},
        {**IMAGE, "packageUris": ["gs://b/p.whl"], "pythonModule": "trainer.task", "args": ["--a"]},
        {**PACKAGE, "scaleTier": "STANDARD_1", "jobDir": "gs://bucket/dir"},
        {**PACKAGE, "env": {"RANK": "0", "WORLD_SIZE": "1"}},  # of one replica
        {**PACKAGE, "secrets": [{"name": "A"}, {"name": "A", "file": "/a"}, {"name": "B", "file": "/ab"}]},
    ],
)
def test_check_accepts_what_the_service_accepted(accepted: dict[str, object]) -> None:
    check(parse_training_input(accepted), default_catalog())


@pytest.mark.parametrize(
    ("fields", "where", "says"),
    [({"scaleTier": "BASIC"}, "python_module", "is required for a package job"), ({"pythonModule": "trainer/task.py"},
     "python_module", "dotted name such as trainer.task"), ({**IMAGE, "runtimeVersion": "2.11"}, "runtime_version",
     "Only one of master_config.image_uri, runtime_version"), ({**IMAGE, "packageUris": ["gs://b/p.whl"]},
     "python_module", "is required with packageUris"), ({**IMAGE, "pythonModule": "trainer/task.py"}, "python_module",
     "dotted name such as trainer.task"), ({"masterConfig": {"imageUri": "a", "containerArgs": ["x"]},
     "pythonModule": "a.b"}, "master_config.container_args", "and python_module are mutually exclusive"), ({**IMAGE,
     "packageUris": ["gs://b/p.whl"], "pythonModule": "a.b", "workerType": "n1-standard-8", "workerCount": 1,
     "workerConfig": {"imageUri": "other"}}, "worker_config.image_uri",
     "must be that of the master, i, with packageUris"), ({**PACKAGE, "jobDir": "gs://"}, "job_dir", "names no bucket"),
     ({**PACKAGE, "jobDir": "gs://../x"}, "job_dir", "names no bucket: '..', but a bucket's name has"), ({**PACKAGE,
     "packageUris": ["gs://b/a.whl", "gs://b/.."]}, "package_uris[1]", "names no object"), ({**PACKAGE,
     "secrets": [{"name": "A"}, {"name": "A"}]}, "secrets[1].env", "of another secret already"), ({**PACKAGE,
     "env": {"A": ""}, "secrets": [{"name": "A"}]}, "secrets[0].env", "A is set by env already"), ({**PACKAGE,
     "scaleTier": "STANDARD_1", "env": {"PET_NNODES": "2"}}, "env",
     "sets PET_NNODES, which is another one in each replica: the service sets it."), ({**PACKAGE,
     "secrets": [{"name": "A", "file": "/a/b"}, {"name": "B", "file": "/a"}]}, "secrets[1].file", "in the way of /a/b"),
     ({**PACKAGE, "scaleTier": "CUSTOM"}, "master_type", "is required when scale_tier is CUSTOM."), ({**PACKAGE,
     "workerCount": 2}, "worker_count", "can only be set when scale_tier is CUSTOM; it is BASIC."), ({**PACKAGE,
     "masterType": "standard"}, "master_type", "can only be set when scale_tier is CUSTOM"), ({**CUSTOM,
     "workerCount": 2}, "worker_type", "is required when worker_count is set."), ({**CUSTOM, "workerType": "local-1",
     "workerCount": 200_000}, "worker_count", "makes a job of 200001 replicas; a job has at most 1000."), ({**PACKAGE,
     "masterConfig": gpus(3, T4)}, "master_config.accelerator_config.count",
     "cannot be attached to n1-standard-4; allowed: 1, 2, 4."), ({**PACKAGE, "scaleTier": "STANDARD_1",
     "workerConfig": gpus(1, T4)}, "worker_config.accelerator_config.type",
     "cannot be attached to n1-highcpu-8; allowed: none."), ({**CUSTOM, "evaluatorCount": 1}, "evaluator_type",
     "is required when evaluator_count is set."), ({**CUSTOM, "parameterServerCount": 1}, "parameter_server_type",
     "is required when"), ({**CUSTOM, "masterType": "n1-standrd-8"}, "master_type", 'Did you mean "n1-standard-8"?'),
     ({**CUSTOM, "masterType": "zzz"}, "master_type", "Known: local-1, local-2"), ({**CUSTOM,
     "workerType": "large_model", "workerCount": 1}, "worker_type",
     "must be all legacy or all Compute Engine; master_type is a Compute Engine type"), ({**CUSTOM,
     "masterType": "standard_gpu", "masterConfig": gpus(1, T4)}, "master_config.accelerator_config",
     "standard_gpu is a legacy type"), ({**CUSTOM, "masterConfig": gpus(1, "NVIDIA_TESLA_A100")},
     "master_config.accelerator_config.type", "allowed: NVIDIA_TESLA_K80, NVIDIA_TESLA_P4"), ({**CUSTOM,
     "masterConfig": gpus(3, T4)}, "master_config.accelerator_config.count", "allowed: 1, 2, 4."), ({**CUSTOM,
     "masterConfig": {"containerCommand": ["a"]}}, "master_config.container_command", "needs a custom image"),
     ({**IMAGE, "args": ["x"], "masterConfig": {"imageUri": "i", "containerArgs": ["a"]}},
     "master_config.container_args", "mutually exclusive"), ({**CUSTOM, "masterType": "cloud_tpu"}, "master_type",
     "cloud_tpu can only be the worker_type."), ({**CUSTOM, **TPU, "workerCount": 2}, "worker_count",
     "must be 1 with a worker_type of cloud_tpu"), ({**CUSTOM, **TPU, "workerConfig": gpus(4, "TPU_V3")},
     "worker_config.accelerator_config.count", "4 x TPU_V3 cannot be attached to cloud_tpu; allowed: 8."), ({**CUSTOM,
     **TPU, "workerType": "n1-standard-8"}, "worker_config.accelerator_config.type",
     "TPU_V3 cannot be attached to n1-standard-8"), ({**IMAGE, **TPU}, "worker_config.tpu_tf_version",
     "is required for a TPU worker with a custom image"), ({**CUSTOM, "masterConfig": {"tpuTfVersion": "2.1"}},
     "master_config.tpu_tf_version", "can only be set with a worker_type of cloud_tpu"), ({**CUSTOM,
     "masterType": "cloud-tpu"}, "master_config.accelerator_config",
     "is required with cloud-tpu: 8 x TPU_V2 or 8 x TPU_V3."), ({**CUSTOM, "masterType": "cloud-tpu",
     "masterConfig": gpus(32, "TPU_V2")}, "master_config.accelerator_config.count",
     "32 x TPU_V2 cannot be attached to cloud-tpu; allowed: 8."), ({**CUSTOM, "workerType": "n1-standard-8",
     "workerCount": 1, "workerConfig": {"imageUri": "i"}}, "worker_config.image_uri", "needs master_config.image_uri"),
     ({**PACKAGE, "mounts": [{"name": "a"}, {"name": "a", "path": "/b"}]}, "mounts[1].name", "a is mounted already."),
     ({**PACKAGE, "mounts": [{"name": "a", "path": "/data"}, {"name": "b", "path": "/data/b"}]}, "mounts[1].path",
     "/data/b is in the way of /data, the path of another mount: choose"), ({**PACKAGE,
     "mounts": [{"name": "a", "path": "/data"}], "secrets": [{"name": "K", "file": "/data/key"}]}, "mounts[0].path",
     "/data is in the way of /data/key, a secret's file: choose"), ({**PACKAGE,
     "mounts": [{"name": "a", "path": "/mnt/jobs/p"}], "jobDir": "/mnt/jobs/"}, "mounts[0].path",
     "/mnt/jobs/p is in the way of /mnt/jobs, the job-dir: choose")],
)  # fmt: skip
def test_check_refuses_with_the_field_and_what_is_allowed(fields: dict[str, object], where: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(parse_training_input(fields), default_catalog())
    assert [v.field for v in caught.value.violations] == [where]
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("fields", "violated"),
    [
        (
            {**CUSTOM, "masterType": "n1-standrd-8", "workerCount": "two", "workerTyp": "x"},
            ["job.training_input", "master_type", "worker_count"],
        ),
        ({**CUSTOM, "scaleTier": "CUSTM", "workerCount": 2}, ["scale_tier"]),  # is it CUSTOM?
        ({"scaleTier": "CUSTOM", "pythonModul": "a"}, ["job.training_input"]),  # pythonModule, masterType: misspelt?
        ({**PACKAGE, "args": "x", "runtimeVersion": 2.1, "jobDir": "gs://"}, ["args", "job_dir", "runtime_version"]),
        (
            {**CUSTOM, "masterConfig": {"imageUri": 3}, "workerConfig": {"imageUri": "i"}},
            ["master_config.image_uri"],  # whether it has an image is not known
        ),
    ],
)
def test_rules_are_reported_beside_what_cannot_be_parsed(fields: dict[str, object], violated: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked_job({"jobId": "j", "trainingInput": fields}, default_catalog())
    assert sorted(violation.field for violation in caught.value.violations) == violated


def test_job_dir_is_a_location_of_gs_or_an_absolute_path() -> None:
    """Each row: a jobDir, and whether it may be one."""
    rows = {
        **dict.fromkeys(("", "gs://bucket", "gs://bucket/a b/c", "/data/out", "/"), True),
        **dict.fromkeys(("s3://bucket/out", "s3a://bucket/out", "hdfs://namenode:9000/out", "file:///out"), False),
        **dict.fromkeys(("GS://bucket/out", "gs:/bucket/out", "gs//bucket", "https://bucket/out", "az://c/out"), False),
        **dict.fromkeys(("out", "./out", "../out", "~/out", " /out", "C:\\out"), False),
    }
    wrong = []
    for job_dir, is_one in rows.items():
        try:
            check(parse_training_input({**PACKAGE, "jobDir": job_dir}), default_catalog())
            problem = ""
        except InvalidArgument as error:
            problem = error.message
        expected = "" if is_one else "Field: job_dir Error: must be gs://BUCKET/DIRECTORY, or an absolute path"
        if not problem.startswith(expected) or bool(problem) is is_one:
            wrong.append(f"{job_dir!r}: {problem}")
    assert not wrong, "\n".join(wrong)


def test_python_version_is_one_that_the_runtime_version_had() -> None:
    """Each row: a runtimeVersion, a pythonVersion, and what is said of that."""
    rows = [
        *(("1.0", "2.7", ""), ("1.3", "3.5", "2.7 with the runtime version 1.3"), ("1.4", "3.5", "")),
        *(("1.14", "2.7", ""), ("1.14", "3.7", "2.7 or 3.5 with the runtime version 1.14"), ("1.15", "3.7", "")),
        *(("1.15", "3.5", "2.7 or 3.7 with the runtime version 1.15"), ("2.1", "3.7", ""), ("2.11", "3.7", "")),
        *(("2.11", "2.7", "3.7 with the runtime version 2.11"), ("2.15", "3.11", ""), ("torch", "3.12", "")),
        *(("", "3.7", ""), ("", "3.10", ""), ("2.11", "", ""), ("", "4.0", "2.7, 3.5, 3.7, 3.8"), ("", "3", "2.7, ")),
        *(("2.15", "3.1", "2.7, 3.5, 3.7"), ("2.11", "3.7.3", "3.7 with"), ("site-1", "python3.7", "2.7, 3.5")),
    ]
    wrong = []
    for runtime, version, says in rows:
        try:
            sent = {**PACKAGE, "runtimeVersion": runtime, "pythonVersion": version}
            check(parse_training_input(sent), default_catalog())
            problem = ""
        except InvalidArgument as error:
            problem = error.message
        expected = f"Field: python_version Error: must be {says}"
        if not problem.startswith(expected if says else "") or bool(problem) is not bool(says):
            wrong.append(f"{runtime} {version}: {problem}")
    assert not wrong, "\n".join(wrong)


def test_placeholders_of_tutorials_are_found_and_real_names_are_not() -> None:
    images = {
        "gcr.io/{path/to/image}:{tag}": ["{path/to/image}", "{tag}"],
        "gcr.io/<PROJECT>/mnist": ["<PROJECT>"],
        "gcr.io/[PROJECT_ID]/mnist:latest": ["[PROJECT_ID]"],
        "gcr.io/PROJECT_ID/mnist": ["PROJECT_ID"],
        "gcr.io/$PROJECT_ID/mnist:$TAG": ["$PROJECT_ID", "$TAG"],
        "gcr.io/${PROJECT}/mnist": ["${PROJECT}"],
        "gcr.io/your-project/image": ["your-project"],
        "gcr.io/YOUR_PROJECT/image": ["YOUR_PROJECT"],
        "gcr.io/my-project/mnist:V1_BETA": [],
        "localhost:5000/team/a@sha256:00ff": [],
        "registry.example:5000/a/b": [],
        "trainyard/digits:0f3a": [],
    }
    assert {uri: in_image(uri) for uri in images} == images
    addresses = {
        "gs://YOUR_BUCKET/out": ["YOUR_BUCKET"], "gs://BUCKET_NAME/out": ["BUCKET_NAME"],
        "gs://{bucket}/out": ["{bucket}"], "gs://bucket/RUN_1/OUT": [], "/data/RUN_1": [],
        "staging://0f/trainer-0.0.0.tar.gz": [],
    }  # fmt: skip
    assert {address: in_address(address) for address in addresses} == addresses
