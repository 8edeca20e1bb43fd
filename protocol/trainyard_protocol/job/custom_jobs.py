"""Custom jobs of Vertex AI: every field of `CustomJob` that has a meaning here, or that changes nothing.

Fields, types and numbers of enums: google/cloud/aiplatform/v1, custom_job.proto, machine_resources.proto and
accelerator_type.proto. Clients of REST send enums by number, so both forms are read. Fields that are not honoured are
refused by name.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator
from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import quoted
from trainyard_protocol.fields import Argument, Boolean, Count, Duration, Int32, Text, enum_of, validation_error
from trainyard_protocol.message import Many, Message

POOLS = ("master", "worker", "ps", "evaluator")
"""The task type of each worker pool, by its position."""

MAX_DISPLAY_NAME = 128

_ACCELERATORS: Mapping[int, str] = {
    0: "ACCELERATOR_TYPE_UNSPECIFIED",
    1: "NVIDIA_TESLA_K80",
    2: "NVIDIA_TESLA_P100",
    3: "NVIDIA_TESLA_V100",
    4: "NVIDIA_TESLA_P4",
    5: "NVIDIA_TESLA_T4",
    6: "TPU_V2",
    7: "TPU_V3",
    8: "NVIDIA_TESLA_A100",
    9: "NVIDIA_A100_80GB",
    10: "TPU_V4_POD",
    11: "NVIDIA_L4",
    12: "TPU_V5_LITEPOD",
    13: "NVIDIA_H100_80GB",
    14: "NVIDIA_H100_MEGA_80GB",
    15: "NVIDIA_H200_141GB",
    16: "NVIDIA_B200",
    17: "NVIDIA_GB200",
    18: "NVIDIA_RTX_PRO_6000",
}
_STRATEGIES: Mapping[int, str] = {
    0: "STRATEGY_UNSPECIFIED",
    1: "ON_DEMAND",
    2: "LOW_COST",
    3: "STANDARD",
    4: "SPOT",
    6: "FLEX_START",
}

_NO_MOUNTS = "an operator names directories of the machines, which jobs mount by `mounts`."
_NO_EXPERIMENTS = "there are no Vertex AI experiments; jobs report metrics to Trainyard, or by MLflow."


def named(names: Mapping[int, str]) -> BeforeValidator:
    """An enum by its number, as its name."""

    def parse(value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int):
            return value
        if value not in names:
            raise validation_error(f"is {value}, which is none of {', '.join(names.values())}.")
        return names[value]

    return BeforeValidator(parse)


def refused(reason: str, *, empty: bool = False) -> BeforeValidator:
    """A field that would change what happens and is not honoured. An empty value is that of a field that is not set,
    except where an `empty` message asks for something."""

    def check(value: object) -> object:
        if value or empty:
            raise validation_error(f"is not supported: {reason}")
        return value

    return BeforeValidator(check)


class Strategy(StrEnum):
    STRATEGY_UNSPECIFIED = "STRATEGY_UNSPECIFIED"
    ON_DEMAND = "ON_DEMAND"
    LOW_COST = "LOW_COST"
    STANDARD = "STANDARD"
    SPOT = "SPOT"
    FLEX_START = "FLEX_START"


class EnvVar(Message):
    name: Text
    value: Text = ""


class MachineSpec(Message):
    machine_type: Text = ""
    accelerator_type: Annotated[Text, named(_ACCELERATORS)] = "ACCELERATOR_TYPE_UNSPECIFIED"
    accelerator_count: Int32 = 0
    tpu_topology: Annotated[Any, refused("a job of Trainyard has TPUs by its machine type alone.")] = None
    gpu_partition_size: Annotated[Any, refused("the operator of a machine divides its GPUs, not a job.")] = None
    reservation_affinity: Annotated[
        Any, refused("there are no reservations; an operator gives projects quotas and bands.")
    ] = None


class DiskSpec(Message):
    boot_disk_type: Text = ""
    boot_disk_size_gb: Int32 = 0


class ContainerSpec(Message):
    image_uri: Text = ""
    command: tuple[Argument, ...] = ()
    args: tuple[Argument, ...] = ()
    env: Many[EnvVar] = ()


class PythonPackageSpec(Message):
    executor_image_uri: Text = ""
    package_uris: tuple[Text, ...] = ()
    python_module: Text = ""
    args: tuple[Argument, ...] = ()
    env: Many[EnvVar] = ()


class WorkerPoolSpec(Message):
    """A pool. Without fields, or with a replicaCount of 0, it is skipped."""

    machine_spec: MachineSpec | None = None
    replica_count: Count = 0
    disk_spec: DiskSpec | None = None
    container_spec: ContainerSpec | None = None
    python_package_spec: PythonPackageSpec | None = None
    nfs_mounts: Annotated[Any, refused(_NO_MOUNTS)] = None
    lustre_mounts: Annotated[Any, refused(_NO_MOUNTS)] = None

    @property
    def env(self) -> tuple[EnvVar, ...]:
        program = self.container_spec or self.python_package_spec
        return program.env if program is not None else ()


class CustomJobScheduling(Message):
    timeout: Duration = ""
    restart_job_on_worker_restart: Boolean = False
    strategy: Annotated[Strategy, enum_of(Strategy), named(_STRATEGIES)] = Strategy.STRATEGY_UNSPECIFIED
    max_wait_duration: Duration = ""
    disable_retries: Boolean = False


class GcsDestination(Message):
    output_uri_prefix: Text = ""


class CustomJobSpec(Message):
    worker_pool_specs: Many[WorkerPoolSpec] = ()
    scheduling: CustomJobScheduling | None = None
    service_account: Text = ""
    network: Text = ""
    reserved_ip_ranges: tuple[Text, ...] = ()
    base_output_directory: GcsDestination | None = None
    protected_artifact_location_id: Text = ""
    enable_web_access: Boolean = False
    enable_dashboard_access: Boolean = False
    persistent_resource_id: Annotated[Any, refused("there are no persistent resources; agents are always there.")] = (
        None
    )
    tensorboard: Annotated[
        Any, refused("there is no Vertex AI TensorBoard; `trainyard jobs tensorboard JOB` shows a job's curves.")
    ] = None
    experiment: Annotated[Any, refused(_NO_EXPERIMENTS)] = None
    experiment_run: Annotated[Any, refused(_NO_EXPERIMENTS)] = None
    models: Annotated[Any, refused("there is no Vertex AI model registry.")] = None
    psc_interface_config: Annotated[
        Any, refused("there is no Private Service Connect; replicas are in the network of their machine.")
    ] = None


class EncryptionSpec(Message):
    kms_key_name: Text = ""


def _display_name(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_DISPLAY_NAME:
        raise validation_error(f"must be a text of 1 to {MAX_DISPLAY_NAME} characters; this is {quoted(value)}.")
    return value


DisplayName = Annotated[Text, BeforeValidator(_display_name)]

_TIMES = ("createTime", "startTime", "endTime", "updateTime")
_OUTPUT_ONLY = frozenset(("name", "state", *_TIMES, "error", "webAccessUris", "trials", "satisfiesPzs", "satisfiesPzi"))


class VertexJob(Message):
    """A create request. Output-only fields are ignored. `labels` are checked as those of every job."""

    display_name: DisplayName
    labels: dict[str, Any] = Field(default_factory=dict)
    encryption_spec: EncryptionSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_output_only(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        return {key: value for key, value in data.items() if to_camel(str(key)) not in _OUTPUT_ONLY}


class CustomJob(VertexJob):
    job_spec: CustomJobSpec


class GivenCustomJob(Message):
    """The custom job that a training input was made from. `job_spec` is that of a `CustomJobSpec`, as it is returned;
    the server has checked it."""

    display_name: DisplayName
    job_spec: dict[str, Any]
