"""Training input: every field of the v1 API's Job and TrainingInput, and Trainyard's own: `secrets`, `env`, `mounts`,
`engine_options`, `notifications`, `custom_job` and some of `scheduling`.

Field names, types and meanings are those of the discovery document `ml.v1` (schemas `GoogleCloudMlV1__Job` and below).
Keys are accepted in camelCase and in snake_case. `canonical()` returns the fields that were sent, in the API's spelling
and without defaults, because clients compare the echoed `trainingInput` with their own after a 409. Rules for several
fields are in `config.validation`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel, to_snake
from pydantic_core import ErrorDetails

from trainyard_protocol.errors import MAX_VIOLATIONS, InvalidArgument, Violation, quoted, shown
from trainyard_protocol.fields import (
    Argument,
    Boolean,
    Count,
    Duration,
    Int32,
    Text,
    did_you_mean,
    enum_of,
    kind_of,
    seconds,
    validation_error,
)
from trainyard_protocol.job.config import env_rules, mount_rules, notification_rules, retry_limits, secret_rules
from trainyard_protocol.job.config.notification_rules import JobEvent
from trainyard_protocol.job.custom_jobs import GivenCustomJob
from trainyard_protocol.job.engine_options import EngineOptions
from trainyard_protocol.job.hyperparameters import HyperparameterSpec
from trainyard_protocol.message import Message, message_at

_M = TypeVar("_M", bound="Message")

MAX_PACKAGE_URIS = 100
MAX_LABELS = 64
MIN_WAIT_TIME_S = 1800.0
DEFAULT_MAX_RUNNING_TIME_S = 604800.0


class ScaleTier(StrEnum):
    BASIC = "BASIC"
    STANDARD_1 = "STANDARD_1"
    PREMIUM_1 = "PREMIUM_1"
    BASIC_GPU = "BASIC_GPU"
    BASIC_TPU = "BASIC_TPU"
    CUSTOM = "CUSTOM"


def _accelerator_type(value: str) -> str:
    return value.upper().replace("-", "_")


class Band(StrEnum):
    """A band of priority: jobs of a higher one go first, whatever their `priority` is. Not of the v1 API."""

    PRODUCTION = "PRODUCTION"
    NORMAL = "NORMAL"
    BATCH = "BATCH"


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


def _wait_time(value: str) -> str:
    if seconds(value) < MIN_WAIT_TIME_S:
        raise validation_error(f"must be at least {MIN_WAIT_TIME_S:.0f}s; this is {value}.")
    return value


def _priority(value: int) -> int:
    if not 0 <= value <= 1000:
        raise validation_error(f"must be between 0 and 1000; this is {value}.")
    return value


ExitCode = Annotated[Int32, AfterValidator(retry_limits.checked_code)]


class RetryRule(Message):
    """A rule by which a failed run is followed by a new one, `count` times: by the exit code of the replica that failed
    first, or by a pattern of RE2 in a line of its log. `other_host`: on another machine, if there is one. Not of the v1
    API."""

    exit_codes: Annotated[tuple[ExitCode, ...], BeforeValidator(retry_limits.not_too_many_codes)] = ()
    log: Annotated[Text, AfterValidator(retry_limits.checked_pattern)] = ""
    count: Annotated[Int32, AfterValidator(retry_limits.checked_count)] = 1
    other_host: Boolean = False

    @model_validator(mode="after")
    def _has_a_condition(self) -> Self:
        if bool(self.exit_codes) == bool(self.log):
            raise validation_error("must have either exitCodes or log, such as exitCodes: [33].")
        return self

    @property
    def condition(self) -> str:
        """The condition as a config has it, for a message: `exitCodes: [33]`."""
        return f"log: {shown(self.log)}" if self.log else f"exitCodes: {list(self.exit_codes)}"


class Scheduling(Message):
    """The last five are not of the v1 API. `min_workers`: a new run may start with so many workers where there is no
    room for all; 0: it waits for all. `retry`: by which rules a failed run is followed by a new one; None: by the
    service's own. `keep_on_failure`: for how long a replica whose program failed is kept; None: it is not.
    `disable_retries`: no new run follows one that was RUNNING, whatever ended it."""

    max_running_time: Duration = f"{DEFAULT_MAX_RUNNING_TIME_S:.0f}s"
    max_wait_time: Annotated[Duration, AfterValidator(_wait_time)] | None = None
    priority: Annotated[Int32, AfterValidator(_priority)] = 0
    band: Annotated[Band, enum_of(Band)] = Band.NORMAL
    min_workers: Int32 = 0
    retry: Annotated[tuple[RetryRule, ...], BeforeValidator(retry_limits.not_too_many_rules)] | None = None
    keep_on_failure: Annotated[Duration, AfterValidator(retry_limits.checked_kept_time)] | None = None
    disable_retries: Boolean = False

    @model_validator(mode="after")
    def _retries_or_not(self) -> Self:
        if self.disable_retries and self.retry:
            raise validation_error("has retry and disableRetries, which exclude each other: remove one of the two.")
        return self


class EncryptionConfig(Message):
    kms_key_name: Text = ""


class SecretReference(Message):
    """A secret of the project that the job's programs get: as the variable `env`, by default of its own name; or as the
    file `file`, whose path is then in `env`, by default `NAME_FILE`. Not of the v1 API."""

    name: Annotated[Text, AfterValidator(secret_rules.checked_name)]
    env: Annotated[Text, AfterValidator(secret_rules.checked_variable)] = ""
    file: Annotated[Text, AfterValidator(secret_rules.checked_path)] = ""

    @model_validator(mode="after")
    def _default_variable(self) -> Self:
        secret_rules.checked_variable(self.variable)  # NAME may be one that the service sets
        return self

    @property
    def variable(self) -> str:
        """The environment variable with the value, or with the file's path."""
        return self.env or (f"{self.name}_FILE" if self.file else self.name)


class MountReference(Message):
    """A directory that the site names, such as a data set. A container has it at `path`, by default /mnt/NAME. Not of
    the v1 API."""

    name: Annotated[Text, AfterValidator(mount_rules.checked_mount_name)]
    path: Annotated[Text, AfterValidator(mount_rules.checked_mount_path)] = ""

    @property
    def target(self) -> str:
        """The path in a container."""
        return self.path or f"/mnt/{self.name}"


NotifiedEvent = Annotated[Text, AfterValidator(notification_rules.checked_event)]


class Notification(Message):
    """A destination that is notified of events of a job: a channel of the project, a mail address or a URL. `events`
    has values of JobEvent, and bounds of metrics such as `loss > 5`. Not of the v1 API."""

    to: Annotated[Text, AfterValidator(notification_rules.checked_destination)]
    events: Annotated[tuple[NotifiedEvent, ...], BeforeValidator(notification_rules.not_too_many_notifications)] = (
        JobEvent.END,
        JobEvent.STALL,
    )


def _package_uris(value: tuple[str, ...]) -> tuple[str, ...]:
    if len(value) > MAX_PACKAGE_URIS:
        raise validation_error(f"may list at most {MAX_PACKAGE_URIS} packages; it lists {len(value)}.")
    return value


class TrainingInput(Message):
    """`GoogleCloudMlV1__TrainingInput`. Types such as `n1-standard-8` are in the machine catalogue. `custom_job`: the
    custom job of Vertex AI that the rest was made from, if there was one."""

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
    engine_options: EngineOptions = EngineOptions()
    notifications: Annotated[
        tuple[Notification, ...], BeforeValidator(notification_rules.not_too_many_notifications)
    ] = ()
    custom_job: GivenCustomJob | None = None

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


def parse_job(data: object) -> Job:
    """Parse the job of a create request. Raises InvalidArgument with every violation."""
    return parse(Job, data, "job")


def parse_training_input(data: object) -> TrainingInput:
    """Parse a `trainingInput` alone. Raises InvalidArgument with every violation."""
    return parse(TrainingInput, data, "job.training_input")


def parse(kind: type[_M], data: object, root: str) -> _M:
    """Validate `data` as `kind`; `root` is its proto path, for messages."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)[: MAX_VIOLATIONS + 1]
    raise InvalidArgument([_violation(kind, detail, root) for detail in details])


def proto_path(steps: Sequence[str | int], root: str = "") -> str:
    """`("trainingInput", "args", 2)` -> `args[2]`: the path as the real service names a field: `job.x` for
    the job's own fields, and no prefix for those of the training input.
    """
    path = root
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{to_snake(step)}"
    return path.lstrip(".").removeprefix("job.training_input.")


def _violation(kind: type[Message], detail: ErrorDetails, root: str) -> Violation:
    steps = list(_named(detail["loc"]))
    if detail["type"] == "extra_forbidden":
        name = str(detail["loc"][-1])  # a name of the user's own, also an empty one
        steps = list(_named(detail["loc"][:-1]))
        owner = message_at(kind, steps)
        at = root + "".join(f"[{s}]" if isinstance(s, int) else f".{to_snake(s)}" for s in steps)
        allowed = [to_camel(name) for name in owner.model_fields] if owner else []
        hint = did_you_mean(name, allowed) or f"Known here: {', '.join(allowed)}."
        if kind is Job and not steps and to_snake(name) in TrainingInput.model_fields:
            hint = "It belongs under trainingInput."
        return Violation(at, hint, unknown=name)
    path = proto_path(steps, root)
    if detail["type"] == "missing":
        return Violation(path, "is required and was not given.")
    if detail["type"] in ("tuple_type", "list_type"):
        return Violation(path, f"must be a list; this is {kind_of(detail['input'])}.")
    if detail["type"] == "dict_type":
        return Violation(path, f"must be a mapping; this is {kind_of(detail['input'])}.")
    return Violation(path, detail["msg"])


def _named(loc: Sequence[str | int]) -> Iterator[str | int]:
    """Pydantic's location without its own steps, which are not fields of the document."""
    for step in loc:
        if isinstance(step, int) or step.isidentifier() or "-" in step:
            yield step
