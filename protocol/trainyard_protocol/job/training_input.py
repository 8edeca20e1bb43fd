"""Training input: every field of the v1 API's Job and TrainingInput, and Trainyard's own: `secrets`, `env`, `mounts`,
`engine_options`, `notifications`, `after`, `custom_job`, `tuning_job` and some of `scheduling`.

Field names, types and meanings are those of the discovery document `ml.v1` (schemas `GoogleCloudMlV1__Job` and below).
Keys are accepted in camelCase and in snake_case. `canonical()` returns the fields that were sent, in the API's spelling
and without defaults, because clients compare the echoed `trainingInput` with their own after a 409. Rules for several
fields are in `config.validation`.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import quoted
from trainyard_protocol.fields import Argument, Boolean, Count, Int32, Text, enum_of, kind_of, validation_error
from trainyard_protocol.job.custom_jobs import GivenCustomJob
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_protocol.job.keys import dependencies as dependency_rules
from trainyard_protocol.job.keys import env as env_rules
from trainyard_protocol.job.keys import mounts as mount_rules
from trainyard_protocol.job.keys import notifications as notification_rules
from trainyard_protocol.job.keys import secrets as secret_rules
from trainyard_protocol.job.keys.engine_options import EngineOptions
from trainyard_protocol.job.keys.mounts import MountReference
from trainyard_protocol.job.keys.notifications import Notification
from trainyard_protocol.job.keys.scheduling import Scheduling
from trainyard_protocol.job.keys.secrets import SecretReference
from trainyard_protocol.job.tuning_jobs import GivenTuningJob
from trainyard_protocol.message import Message

MAX_PACKAGE_URIS = 100
MAX_LABELS = 64


class ScaleTier(StrEnum):
    BASIC = "BASIC"
    STANDARD_1 = "STANDARD_1"
    PREMIUM_1 = "PREMIUM_1"
    BASIC_GPU = "BASIC_GPU"
    BASIC_TPU = "BASIC_TPU"
    CUSTOM = "CUSTOM"


def _accelerator_type(value: str) -> str:
    return value.upper().replace("-", "_")


class AcceleratorConfig(Message):
    count: Count = 0
    type: Annotated[Text, AfterValidator(_accelerator_type)] = "ACCELERATOR_TYPE_UNSPECIFIED"


class DiskConfig(Message):
    boot_disk_type: Text = "pd-ssd"
    boot_disk_size_gb: Int32 = 100


class ReplicaConfig(Message):
    accelerator_config: AcceleratorConfig | None = None
    image_uri: Text = ""
    disk_config: DiskConfig | None = None
    tpu_tf_version: Text = ""
    container_command: tuple[Argument, ...] = ()
    container_args: tuple[Argument, ...] = ()


class EncryptionConfig(Message):
    kms_key_name: Text = ""


def _package_uris(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(value) > MAX_PACKAGE_URIS:
        raise validation_error(f"may list at most {MAX_PACKAGE_URIS} packages; it lists {len(value)}.")
    return value


class TrainingInput(Message):
    """`GoogleCloudMlV1__TrainingInput`. Types such as `n1-standard-8` are in the machine catalogue. `custom_job`
    and `tuning_job`: the job of Vertex AI that the rest was made from, if there was one."""

    scale_tier: Annotated[ScaleTier, enum_of(ScaleTier)] = ScaleTier.BASIC
    master_type: Text = ""
    master_config: ReplicaConfig | None = None
    worker_type: Text = ""
    worker_config: ReplicaConfig | None = None
    worker_count: Count = 0
    parameter_server_type: Text = ""
    parameter_server_config: ReplicaConfig | None = None
    parameter_server_count: Count = 0
    evaluator_type: Text = ""
    evaluator_config: ReplicaConfig | None = None
    evaluator_count: Count = 0
    package_uris: Annotated[tuple[Text, ...], AfterValidator(_package_uris)] = ()
    python_module: Text = ""
    args: tuple[Argument, ...] = ()
    hyperparameters: HyperparameterSpec | None = None
    region: Text = ""
    job_dir: Text = ""
    runtime_version: Text = ""
    python_version: Text = ""
    encryption_config: EncryptionConfig | None = None
    scheduling: Scheduling | None = None
    network: Text = ""
    service_account: Text = ""
    use_chief_in_tf_config: Boolean = False
    enable_web_access: Boolean = False
    secrets: Annotated[tuple[SecretReference, ...], BeforeValidator(secret_rules.not_too_many)] = ()
    env: Annotated[dict[str, str], BeforeValidator(env_rules.checked_env)] = Field(default_factory=dict)
    mounts: Annotated[tuple[MountReference, ...], BeforeValidator(mount_rules.not_too_many_mounts)] = ()
    engine_options: EngineOptions = Field(default_factory=EngineOptions)  # a default would be copied deeply each time
    notifications: Annotated[
        tuple[Notification, ...], BeforeValidator(notification_rules.not_too_many_notifications)
    ] = ()
    after: Annotated[
        tuple[dependency_rules.Predecessor, ...], BeforeValidator(dependency_rules.not_too_many_predecessors)
    ] = ()
    custom_job: GivenCustomJob | None = None
    tuning_job: GivenTuningJob | None = None

    @property
    def runs_image(self) -> bool:
        """Whether it runs what its image says, and not a Python module, which an image may have as well."""
        return bool(self.image_uri) and not self.python_module

    @property
    def image_uri(self) -> str:
        """The custom image of the master; empty for a package job."""
        return self.master_config.image_uri if self.master_config else ""


_JOB_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MOST_SHOWN = 128
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")


def _job_id(value: str) -> str:
    if not _JOB_ID.fullmatch(value):
        meant = re.sub(r"[^A-Za-z0-9_]", "_", value)
        hint = f". Did you mean {meant}?" if _JOB_ID.fullmatch(meant) and len(meant) <= _MOST_SHOWN else ""
        raise validation_error(
            f"A name should start with a letter and contain only letters, numbers and underscores{hint}"
        )
    if len(value) > 128:
        raise validation_error(f"A name should have at most 128 characters; this one has {len(value)}.")
    return value


def _labels(value: object) -> object:
    if not isinstance(value, Mapping):
        raise validation_error(f"must be a mapping of names to values; this is {kind_of(value)}.")
    if len(value) > MAX_LABELS:
        raise validation_error(f"may hold at most {MAX_LABELS} labels; it holds {len(value)}.")
    for key, item in value.items():
        if not isinstance(key, str) or not _LABEL_KEY.fullmatch(key):
            raise validation_error(
                f"has the key {quoted(key)}; "
                "a key starts with a lower-case letter and has at most 63 of a-z, 0-9, _ and -."
            )
        if not isinstance(item, str) or not _LABEL_VALUE.fullmatch(item):
            raise validation_error(
                f"has the value {quoted(item)} for {key!r}; a value is a string of at most 63 of a-z, 0-9, _ and -."
            )
    return value


Labels = Annotated[dict[str, str], BeforeValidator(_labels)]

OUTPUT_ONLY = frozenset(
    ("createTime", "startTime", "endTime", "state", "errorMessage", "trainingOutput", "jobPosition")
)
"""Keys of the API's Job that the server sets."""


class Job(Message):
    """A create request. Output-only fields of the API's Job are ignored, as in the real service."""

    job_id: Annotated[Text, AfterValidator(_job_id)]
    training_input: TrainingInput
    labels: Labels = Field(default_factory=dict)
    etag: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _without_output_only(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        if "predictionInput" in data or "prediction_input" in data:
            raise validation_error("has a predictionInput; only training jobs run here.")
        return {key: value for key, value in data.items() if to_camel(str(key)) not in OUTPUT_ONLY}


class LabelsPatch(Message):
    """The body of a patch: only `labels` and `etag` can change."""

    labels: Labels = Field(default_factory=dict)
    etag: Text = ""
