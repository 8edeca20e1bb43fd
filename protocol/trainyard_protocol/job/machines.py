"""Scale tiers and machine types: from a training input to the resources of each replica.

The tables are data (`configs/scale_tiers.yaml`, `configs/machine_types.yaml`), which a site's own file extends. The
scheduler compares the resources with real machines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field, ValidationError

from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.cluster import TASK_TYPES, Task, TaskType
from trainyard_protocol.job.config.yaml_file import SHIPPED, SITE, SiteEntry, entry_problem, read_yaml_file
from trainyard_protocol.job.engine_allowance import EngineAllowance
from trainyard_protocol.job.pod_settings import KubernetesPart, PodSettings
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_protocol.job.training_input import ReplicaConfig, ScaleTier, TrainingInput


class Accelerator(SiteEntry):
    type: str
    count: int


class MachineType(SiteEntry):
    """The resources of a replica of this type. `accelerators` maps a type to the counts that may be added. `kubernetes`
    has what its pod gets in a cluster."""

    family: Literal["legacy", "compute-engine", "site"]
    vcpus: int
    memory_gb: float
    accelerator: Accelerator | None = None
    accelerators: dict[str, list[int]] = Field(default_factory=dict)
    kubernetes: KubernetesPart = KubernetesPart()


class TierReplicas(SiteEntry):
    machine_type: str
    count: int = 1


class _CatalogFile(SiteEntry):
    scale_tiers: dict[str, dict[TaskType, TierReplicas]] = Field(default_factory=dict)
    machine_types: dict[str, MachineType] = Field(default_factory=dict)
    kubernetes: KubernetesPart = KubernetesPart()
    engine_options: EngineAllowance = EngineAllowance()


@dataclass(frozen=True)
class Catalog:
    """`kubernetes` has what pods get of every machine type, where its own entry says nothing else. `engine_options` has
    what jobs may ask of an engine themselves, `file` is the site's file, which says so; "" without one."""

    machine_types: Mapping[str, MachineType] = field(default_factory=lambda: MappingProxyType({}))
    scale_tiers: Mapping[str, Mapping[TaskType, TierReplicas]] = field(default_factory=lambda: MappingProxyType({}))
    kubernetes: KubernetesPart = field(default_factory=KubernetesPart)
    engine_options: EngineAllowance = field(default_factory=EngineAllowance)
    file: str = ""

    def names(self) -> list[str]:
        return list(self.machine_types)

    def pod_settings(self, machine_type: str, accelerator_type: str) -> PodSettings:
        """The settings of a replica's pod. A type that the file no longer has: what all types get."""
        machine = self.machine_types.get(machine_type)
        own = KubernetesPart() if machine is None else machine.kubernetes
        return self.kubernetes.overridden_by(own).settings(accelerator_type)


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that a replica requests: whole CPUs, bytes of memory, and accelerators of one type."""

    vcpus: int
    memory_bytes: int
    accelerator_type: str = ""
    accelerator_count: int = 0


@dataclass(frozen=True, slots=True)
class ReplicaRequest:
    """One replica of a gang, before it is placed."""

    task: Task
    machine_type: str
    resources: Resources


def configs_dir() -> Path:
    """The directory of the shipped tables: in the installed package, or `configs/` of a checkout."""
    packaged = Path(__file__).parents[1] / "configs"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "configs"


@cache
def default_catalog() -> Catalog:
    shipped = configs_dir()
    return _merged(_read(shipped / "machine_types.yaml", SHIPPED), _read(shipped / "scale_tiers.yaml", SHIPPED))


def load_catalog(site_file: Path | None = None) -> Catalog:
    """The shipped tables, extended by the site's file. Raises InvalidArgument, with file, line and entry, for a bad
    file."""
    shipped = default_catalog()
    if site_file is None:
        return shipped
    site = _read(site_file)
    merged = _merged(shipped, site, str(site_file))
    for tier, replicas in site.scale_tiers.items():
        for task_type, requested in replicas.items():
            if requested.machine_type not in merged.machine_types:
                raise InvalidArgument(
                    f"{site_file}: scaleTiers.{tier}.{task_type} names the machine type "
                    f"{requested.machine_type!r}, which is in no catalogue."
                )
    return merged


def gang(training_input: TrainingInput, catalog: Catalog) -> list[ReplicaRequest]:
    """Every replica of one run, the master first. The input must have passed `validation.check`."""
    requests = []
    for task_type in TASK_TYPES:
        machine_type, count = replicas_of(training_input, task_type, catalog)
        if not count:
            continue
        machine = catalog.machine_types[machine_type]
        requested = config_of(training_input, task_type).accelerator_config
        accelerator = machine.accelerator
        if requested and requested.count:
            accelerator = Accelerator(type=requested.type, count=requested.count)
        resources = Resources(
            vcpus=machine.vcpus,
            memory_bytes=round(machine.memory_gb * GIGABYTE),
            accelerator_type=accelerator.type if accelerator else "",
            accelerator_count=accelerator.count if accelerator else 0,
        )
        requests += [ReplicaRequest(Task(task_type, index), machine_type, resources) for index in range(count)]
    return requests


def replicas_of(training_input: TrainingInput, task_type: TaskType, catalog: Catalog) -> tuple[str, int]:
    """The machine type and the number of replicas of one task type."""
    if training_input.scale_tier is not ScaleTier.CUSTOM:
        tier = catalog.scale_tiers[training_input.scale_tier].get(task_type)
        return (tier.machine_type, tier.count) if tier else ("", 0)
    match task_type:
        case "master":
            return training_input.master_type, 1
        case "worker":
            return training_input.worker_type, training_input.worker_count
        case "ps":
            return training_input.parameter_server_type, training_input.parameter_server_count
        case "evaluator":
            return training_input.evaluator_type, training_input.evaluator_count


def config_of(training_input: TrainingInput, task_type: TaskType) -> ReplicaConfig:
    """The replica config of one task type; its image defaults to the master's."""
    config: ReplicaConfig | None = {
        "master": training_input.master_config,
        "worker": training_input.worker_config,
        "ps": training_input.parameter_server_config,
        "evaluator": training_input.evaluator_config,
    }[task_type]
    config = config or ReplicaConfig()
    if not config.image_uri and training_input.image_uri:
        return config.model_copy(update={"image_uri": training_input.image_uri})
    return config


def _read(path: Path, loader: Any = SITE) -> _CatalogFile:
    text, data = read_yaml_file(path, loader)
    try:
        return _CatalogFile.model_validate(data)
    except ValidationError as error:
        raise entry_problem(path, text, _CatalogFile, error) from error


def _merged(base: Catalog | _CatalogFile, extension: _CatalogFile, file: str = "") -> Catalog:
    return Catalog(
        machine_types=MappingProxyType({**base.machine_types, **extension.machine_types}),
        scale_tiers=MappingProxyType({**base.scale_tiers, **extension.scale_tiers}),
        kubernetes=extension.kubernetes,
        engine_options=extension.engine_options,
        file=file,
    )
