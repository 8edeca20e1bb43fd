"""Validation rules across fields, with their messages."""

import pytest

from trainyard_protocol.config.validation import check, checked_job
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.machines import default_catalog
from trainyard_protocol.training_input import parse_training_input

PACKAGE = {"pythonModule": "trainer.task"}
CUSTOM = {**PACKAGE, "scaleTier": "CUSTOM", "masterType": "n1-standard-8"}
IMAGE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-8", "masterConfig": {"imageUri": "i"}}


@pytest.mark.parametrize(
    "accepted",
    [
        PACKAGE,
        CUSTOM,
        IMAGE,
        {**CUSTOM, "workerType": "local-1", "workerCount": 1},
        {**CUSTOM, "workerType": "n1-standard-8"},  # no workers: the count is zero by default
        {**CUSTOM, "masterConfig": {"acceleratorConfig": {"count": 2, "type": "nvidia-tesla-t4"}}},
        {**IMAGE, "masterConfig": {"imageUri": "i", "containerCommand": ["a"], "containerArgs": ["b"]}},
        {**IMAGE, "workerType": "n1-standard-8", "workerCount": 1, "workerConfig": {"containerArgs": ["b"]}},
        {**PACKAGE, "scaleTier": "STANDARD_1", "jobDir": "gs://bucket/dir"},
    ],
)
def test_check_accepts_what_the_service_accepted(accepted: dict[str, object]) -> None:
    check(parse_training_input(accepted), default_catalog())


@pytest.mark.parametrize(
    ("fields", "where", "says"),
    [
        ({"scaleTier": "BASIC"}, "python_module", "is required for a package job"),
        ({"pythonModule": "trainer/task.py"}, "python_module", "dotted name such as trainer.task"),
        (
            {**IMAGE, "runtimeVersion": "2.11"},
            "runtime_version",
            "Only one of master_config.image_uri, runtime_version",
        ),
        ({**IMAGE, "pythonModule": "a"}, "python_module", "brings its own program"),
        (
            {**IMAGE, "packageUris": ["gs://b/p.whl"]},
            "package_uris",
            "cannot be installed into a custom image",
        ),
        ({**PACKAGE, "jobDir": "gs://"}, "job_dir", "names no bucket"),
        ({**PACKAGE, "scaleTier": "CUSTOM"}, "master_type", "is required when scale_tier is CUSTOM."),
        (
            {**PACKAGE, "workerCount": 2},
            "worker_count",
            "can only be set when scale_tier is CUSTOM; it is BASIC.",
        ),
        ({**PACKAGE, "masterType": "standard"}, "master_type", "can only be set when scale_tier is CUSTOM"),
        ({**CUSTOM, "workerCount": 2}, "worker_type", "is required when worker_count is set."),
        (
            {**CUSTOM, "workerType": "local-1", "workerCount": 200_000},
            "worker_count",
            "makes a job of 200001 replicas; a job has at most 1000.",
        ),
        (
            {**PACKAGE, "masterConfig": {"acceleratorConfig": {"count": 3, "type": "NVIDIA_TESLA_T4"}}},
            "master_config.accelerator_config.count",
            "cannot be attached to n1-standard-4; allowed: 1, 2, 4.",
        ),
        (
            {
                **PACKAGE,
                "scaleTier": "STANDARD_1",
                "workerConfig": {"acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_T4"}},
            },
            "worker_config.accelerator_config.type",
            "cannot be attached to n1-highcpu-8; allowed: none.",
        ),
        ({**CUSTOM, "evaluatorCount": 1}, "evaluator_type", "is required when evaluator_count is set."),
        ({**CUSTOM, "parameterServerCount": 1}, "parameter_server_type", "is required when"),
        ({**CUSTOM, "masterType": "n1-standrd-8"}, "master_type", 'Did you mean "n1-standard-8"?'),
        ({**CUSTOM, "masterType": "zzz"}, "master_type", "Known: local-1, local-2"),
        (
            {**CUSTOM, "workerType": "large_model", "workerCount": 1},
            "worker_type",
            "must be all legacy or all Compute Engine; master_type is a Compute Engine type",
        ),
        (
            {
                **CUSTOM,
                "masterType": "standard_gpu",
                "masterConfig": {"acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_T4"}},
            },
            "master_config.accelerator_config",
            "standard_gpu is a legacy type",
        ),
        (
            {**CUSTOM, "masterConfig": {"acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_A100"}}},
            "master_config.accelerator_config.type",
            "allowed: NVIDIA_TESLA_K80, NVIDIA_TESLA_P4",
        ),
        (
            {**CUSTOM, "masterConfig": {"acceleratorConfig": {"count": 3, "type": "NVIDIA_TESLA_T4"}}},
            "master_config.accelerator_config.count",
            "allowed: 1, 2, 4.",
        ),
        (
            {**CUSTOM, "masterConfig": {"containerCommand": ["a"]}},
            "master_config.container_command",
            "needs a custom image",
        ),
        (
            {**IMAGE, "args": ["x"], "masterConfig": {"imageUri": "i", "containerArgs": ["a"]}},
            "master_config.container_args",
            "mutually exclusive",
        ),
        (
            {**CUSTOM, "workerType": "n1-standard-8", "workerCount": 1, "workerConfig": {"imageUri": "i"}},
            "worker_config.image_uri",
            "needs master_config.image_uri",
        ),
        (
            {
                **PACKAGE,
                "hyperparameters": {
                    "params": [{"parameterName": "r", "type": "CATEGORICAL", "categoricalValues": ["a"]}]
                },
            },
            "hyperparameters",
            "not supported yet",
        ),
    ],
)
def test_check_refuses_with_the_field_and_what_is_allowed(
    fields: dict[str, object], where: str, says: str
) -> None:
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
        (
            {"scaleTier": "CUSTOM", "pythonModul": "a"},
            ["job.training_input"],
        ),  # pythonModule, masterType: misspelt?
        (
            {**PACKAGE, "args": "x", "runtimeVersion": 2.1, "jobDir": "gs://"},
            ["args", "job_dir", "runtime_version"],
        ),
        (
            {**CUSTOM, "masterConfig": {"imageUri": 3}, "workerConfig": {"imageUri": "i"}},
            ["master_config.image_uri"],  # whether it has an image is not known
        ),
    ],
)
def test_checked_job_reports_rules_beside_values_that_cannot_be_parsed(
    fields: dict[str, object], violated: list[str]
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked_job({"jobId": "j", "trainingInput": fields}, default_catalog())
    assert sorted(violation.field for violation in caught.value.violations) == violated
