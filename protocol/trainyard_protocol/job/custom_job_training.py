"""Translation of a custom job of Vertex AI to a job: its training input, and errors back to the fields of the custom
job. Pure."""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from pydantic.alias_generators import to_camel

from trainyard_protocol.errors import InvalidArgument, Violation
from trainyard_protocol.fields import seconds
from trainyard_protocol.job.custom_jobs import CustomJob, CustomJobScheduling, CustomJobSpec, Strategy, WorkerPoolSpec
from trainyard_protocol.job.keys.scheduling import Band
from trainyard_protocol.job.parsing import parse
from trainyard_protocol.job.training_input import Job, ScaleTier, TrainingInput

_PREFIXES = ("master", "worker", "parameter_server", "evaluator")
"""The beginning of the fields of each pool in a training input, by its position."""

_FIRST = "custom_job.job_spec.worker_pool_specs[0]"
_CONTAINER, _PACKAGE = "container_spec", "python_package_spec"
_CUT = 99  # characters of a displayName in a job's id, which then fits a study

_BESIDE = {"custom_job", "tuning_job", "encryption_config", "secrets", "mounts", "engine_options", "notifications"}
"""Fields of a training input that a jobSpec does not have, and may be beside it."""

_PREBUILT = re.compile(
    r"(?:[a-z]+-docker\.pkg\.dev/vertex-ai|gcr\.io/cloud-aiplatform)/training/"
    r"(?P<framework>tf|pytorch)-(?:cpu|gpu)\.(?P<version>\d+-\d+)(?:[.:@].*)?"
)
"""Images of Vertex AI for packages. Source: https://cloud.google.com/vertex-ai/docs/training/pre-built-containers"""

_TENSORFLOWS = {version: version for version in ("1.15", *(f"2.{minor}" for minor in range(1, 12)), "2.15")}
_TENSORFLOWS |= dict.fromkeys(("2.12", "2.13", "2.14"), "2.15")
"""Runtime versions by the TensorFlow of an image. Later ones have Keras 3, and no runtime: their image is run."""

_PROGRAM = ("package_uris", "python_module", "args")
_WHOLE = {
    "job_dir": "custom_job.job_spec.base_output_directory.output_uri_prefix",
    "scheduling.max_running_time": "custom_job.job_spec.scheduling.timeout",
    "scheduling.max_wait_time": "custom_job.job_spec.scheduling.max_wait_duration",
    "scheduling.band": "custom_job.job_spec.scheduling.strategy",
    "scheduling.disable_retries": "custom_job.job_spec.scheduling.disable_retries",
    "region": "parent",
    "job.labels": "custom_job.labels",
    "runtime_version": f"{_FIRST}.{_PACKAGE}.executor_image_uri",
}


def new_job_id(display_name: str, now: datetime, random: str) -> str:
    """An id that begins with the displayName, as far as an id can have its characters."""
    words = re.sub(r"[^A-Za-z0-9]+", "_", display_name).strip("_")
    name = words if re.match(r"[A-Za-z]", words) else f"job_{words}".rstrip("_")
    return f"{name[:_CUT].rstrip('_')}_{now:%Y%m%d_%H%M%S}_{random}"


def create_request(custom_job: CustomJob, job_id: str, location: str) -> dict[str, Any]:
    """The create request of the job. Raises InvalidArgument, with fields of the custom job, for what cannot be said as
    a job. Other rules are those of every job: see `renamed`."""
    sent = training_input(custom_job.job_spec, location)
    if custom_job.encryption_spec is not None:
        sent["encryptionConfig"] = custom_job.encryption_spec.canonical()
    sent["customJob"] = {"displayName": custom_job.display_name, "jobSpec": custom_job.job_spec.canonical()}
    return {"jobId": job_id, "trainingInput": sent, **({"labels": custom_job.labels} if custom_job.labels else {})}


def training_input(spec: CustomJobSpec, location: str) -> dict[str, Any]:
    """The training input of a custom job. Raises InvalidArgument."""
    pools = _pools(spec.worker_pool_specs)
    if violations := list(_violations(spec.worker_pool_specs, pools)):
        raise InvalidArgument(violations)
    sent: dict[str, Any] = {"scaleTier": ScaleTier.CUSTOM.value, "region": location, "useChiefInTfConfig": True}
    for number, pool in pools.items():
        sent |= _pool(number, pool)
    sent |= _program(pools[0])
    if pools[0].env:
        sent["env"] = _env(pools[0])
    if spec.base_output_directory is not None and spec.base_output_directory.output_uri_prefix:
        sent["jobDir"] = spec.base_output_directory.output_uri_prefix
    if scheduling := _scheduling(spec.scheduling or CustomJobScheduling()):
        sent["scheduling"] = scheduling
    same = ("network", "serviceAccount", "enableWebAccess")
    return sent | {name: value for name, value in spec.canonical().items() if name in same}


def check_given(job: Job) -> None:
    """Raises InvalidArgument where a training input is not what its custom job is translated to: one of the two would
    be shown, and the other run."""
    if others := differences(job.training_input):
        raise another_job("custom_job", others)


def another_job(key: str, fields: Sequence[str]) -> InvalidArgument:
    """The refusal of a training input that is not what the job of Vertex AI in one of its keys is translated to."""
    text = f"is another job than the training input: they differ in {', '.join(fields)}. Leave {to_camel(key)} out, or"
    return InvalidArgument(Violation(key, f"{text} change both."))


def differences(training: TrainingInput) -> list[str]:
    """The fields in which a training input is not what its custom job is translated to. Raises InvalidArgument."""
    if training.custom_job is None:
        return []
    if not training.region:
        raise InvalidArgument(Violation("region", "is required with customJob: the location of the custom job."))
    spec = parse(CustomJobSpec, training.custom_job.job_spec, "custom_job.job_spec")
    return unlike(training, training_input(spec, training.region))


def unlike(training: TrainingInput, sent: Mapping[str, Any]) -> list[str]:
    """The fields in which a training input is not the translated one that is `sent`. Raises InvalidArgument."""
    translated = parse(TrainingInput, sent, "job.training_input")
    names = translated.model_fields_set | (training.model_fields_set - _BESIDE)
    return sorted(name for name in names if getattr(translated, name) != getattr(training, name))


def followed(job_spec: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
    """The jobSpec after the training input that was made from it was changed, as far as a jobSpec can say the changes.
    Both have keys in camelCase."""
    spec = copy.deepcopy(dict(job_spec))
    for number, pool in enumerate(spec.get("workerPoolSpecs", ())[: len(_PREFIXES)]):
        if number == 0 or int(pool.get("replicaCount", 0)):
            _follow(pool, number, sent)
    if sent.get("jobDir"):
        spec["baseOutputDirectory"] = {"outputUriPrefix": sent["jobDir"]}
    for name in ("serviceAccount", "enableWebAccess"):
        if name in sent:
            spec[name] = sent[name]
    if str((sent.get("scheduling") or {}).get("band")).upper() == Band.BATCH.value:
        given = spec.get("scheduling", {})
        if given.get("strategy") != Strategy.LOW_COST.value:
            spec["scheduling"] = {**given, "strategy": Strategy.SPOT.value}
    return spec


def renamed(error: InvalidArgument, custom_job: CustomJob) -> InvalidArgument:
    """The error of a job with the fields of the custom job that it was made from."""
    return with_fields_of(error, custom_job.job_spec)


def with_fields_of(error: InvalidArgument, spec: CustomJobSpec) -> InvalidArgument:
    """The error of a job with the fields of the jobSpec that it was made from."""
    pools = spec.worker_pool_specs
    return type(error)([replace(violation, field=_field(violation.field, pools)) for violation in error.violations])


def _pools(specs: Sequence[WorkerPoolSpec]) -> dict[int, WorkerPoolSpec]:
    """The pools that have replicas, by position: {} in place of a pool skips it."""
    return {
        number: spec
        for number, spec in enumerate(specs)
        if number == 0 or (spec.replica_count if "replica_count" in spec.model_fields_set else spec.model_fields_set)
    }


def _violations(specs: Sequence[WorkerPoolSpec], pools: Mapping[int, WorkerPoolSpec]) -> Iterator[Violation]:
    at = "custom_job.job_spec.worker_pool_specs"
    if not specs:
        yield Violation(at, "is required: a list of 1 to 4 pools, the first with the primary replica.")
        return
    if len(specs) > len(_PREFIXES):
        yield Violation(
            at,
            f"may have {len(_PREFIXES)} pools (primary, workers, parameter servers, evaluators); it has {len(specs)}.",
        )
    first = pools[0]
    if "replica_count" in first.model_fields_set and first.replica_count != 1:
        yield Violation(f"{_FIRST}.replica_count", f"must be 1: the primary replica; this is {first.replica_count}.")
    for number, pool in pools.items():
        yield from _of_pool(f"{at}[{number}]", number, pool, first)


def _of_pool(at: str, number: int, pool: WorkerPoolSpec, first: WorkerPoolSpec) -> Iterator[Violation]:
    if number and not pool.replica_count:
        yield Violation(f"{at}.replica_count", "is required; {} in place of the pool skips it.")
    if not (pool.machine_spec and pool.machine_spec.machine_type):
        yield Violation(f"{at}.machine_spec.machine_type", "is required.")
    if (pool.container_spec is None) == (pool.python_package_spec is None):
        yield Violation(at, "must have either container_spec or python_package_spec.")
        return
    if pool.container_spec is not None and not pool.container_spec.image_uri:
        yield Violation(f"{at}.{_CONTAINER}.image_uri", "is required.")
    for position, variable in enumerate(pool.env):
        if re.search(r"\$\([A-Za-z_]", variable.value):
            name = f"{at}.{_program_name(pool)}.env[{position}].value"
            yield Violation(name, "has a reference $(NAME) to another variable, which is not expanded here.")
    if not number or (first.container_spec is None) == (first.python_package_spec is None):
        return
    kind = _program_name(first)
    if _program_name(pool) != kind:
        yield Violation(f"{at}.{_program_name(pool)}", f"must be {kind}, as in the first pool.")
    elif pool.python_package_spec is not None and pool.python_package_spec != first.python_package_spec:
        yield Violation(f"{at}.{_PACKAGE}", "must be that of the first pool: a package job runs one program.")
    elif _env(pool) != _env(first):
        yield Violation(f"{at}.{_CONTAINER}.env", "must be that of the first pool: variables are those of a job.")


def _env(pool: WorkerPoolSpec) -> dict[str, str]:
    return {variable.name: variable.value for variable in pool.env}


def _program_name(pool: WorkerPoolSpec) -> str:
    return _CONTAINER if pool.container_spec is not None else _PACKAGE


def _pool(number: int, pool: WorkerPoolSpec) -> dict[str, Any]:
    """The fields of one pool: `workerType`, `workerCount`, `workerConfig`."""
    prefix = to_camel(_PREFIXES[number])
    machine = pool.machine_spec
    fields: dict[str, Any] = {f"{prefix}Type": machine.machine_type if machine else ""}
    if number:
        fields[f"{prefix}Count"] = str(pool.replica_count)
    config: dict[str, Any] = {}
    if machine and machine.accelerator_count:
        config["acceleratorConfig"] = {"type": machine.accelerator_type, "count": str(machine.accelerator_count)}
    if pool.disk_spec is not None:
        config["diskConfig"] = pool.disk_spec.canonical()
    if pool.container_spec is not None:
        config["imageUri"] = pool.container_spec.image_uri
        if pool.container_spec.command:
            config["containerCommand"] = list(pool.container_spec.command)
        if pool.container_spec.args:
            config["containerArgs"] = list(pool.container_spec.args)
    elif number == 0 and (image := _executor(pool)) and not _runtime_version(image):
        config["imageUri"] = image
    return {**fields, f"{prefix}Config": config} if config else fields


def _follow(pool: dict[str, Any], number: int, sent: Mapping[str, Any]) -> None:
    """Change a pool as the training input says."""
    prefix = to_camel(_PREFIXES[number])
    machine = {**pool.get("machineSpec", {}), "machineType": sent.get(f"{prefix}Type", "")}
    config = sent.get(f"{prefix}Config") or {}
    if accelerators := config.get("acceleratorConfig"):
        count = str(accelerators.get("count", ""))
        machine["acceleratorType"] = accelerators.get("type")
        machine["acceleratorCount"] = int(count) if count.isdecimal() else count
    pool["machineSpec"] = machine
    if number:
        pool["replicaCount"] = sent.get(f"{prefix}Count")
    if "containerSpec" in pool:
        program = pool["containerSpec"]
        changed = {"imageUri": config.get("imageUri"), "args": config.get("containerArgs")}
    else:
        program = pool.setdefault("pythonPackageSpec", {})
        changed = {name: sent.get(name) for name in ("pythonModule", "packageUris", "args")}
        changed["executorImageUri"] = (sent.get("masterConfig") or {}).get("imageUri")
    changed["env"] = [{"name": name, "value": value} for name, value in (sent.get("env") or {}).items()]
    program |= {name: value for name, value in changed.items() if value}


def _program(first: WorkerPoolSpec) -> dict[str, Any]:
    """The fields of a package job: a runtime version in place of an image that Vertex AI has for it."""
    package = first.python_package_spec
    if package is None:
        return {}
    sent: dict[str, Any] = {"pythonModule": package.python_module, "packageUris": list(package.package_uris)}
    if package.args:
        sent["args"] = list(package.args)
    if version := _runtime_version(package.executor_image_uri):
        sent["runtimeVersion"] = version
    return sent


def _executor(pool: WorkerPoolSpec) -> str:
    return pool.python_package_spec.executor_image_uri if pool.python_package_spec is not None else ""


def _runtime_version(image: str) -> str:
    """The runtime version that is there for an image of Vertex AI; "" for any other image."""
    match = _PREBUILT.fullmatch(image)
    if match is None:
        return ""
    if match["framework"] == "pytorch":
        return "torch"
    return _TENSORFLOWS.get(match["version"].replace("-", "."), "")


def _scheduling(scheduling: CustomJobScheduling) -> dict[str, Any]:
    sent: dict[str, Any] = {}
    if scheduling.timeout and seconds(scheduling.timeout):
        sent["maxRunningTime"] = scheduling.timeout
    if scheduling.max_wait_duration and seconds(scheduling.max_wait_duration):
        sent["maxWaitTime"] = scheduling.max_wait_duration
    if scheduling.strategy in (Strategy.SPOT, Strategy.LOW_COST):
        sent["band"] = Band.BATCH.value
    if scheduling.disable_retries:
        sent["disableRetries"] = True
    return sent


def _field(name: str, pools: Sequence[WorkerPoolSpec]) -> str:
    """`worker_config.image_uri` -> `custom_job.job_spec.worker_pool_specs[1].container_spec.image_uri`."""
    program = _program_name(pools[0]) if pools else _PACKAGE
    if name in _WHOLE:
        return _WHOLE[name]
    first, rest = re.match(r"([a-z_]*)(.*)", name, re.S).groups()  # type: ignore[union-attr]
    if first == "env":
        return f"{_FIRST}.{program}.env"
    if first in _PROGRAM:
        return f"{_FIRST}.{_PACKAGE}.{first}{rest}"
    for number, prefix in enumerate(_PREFIXES):
        at = f"custom_job.job_spec.worker_pool_specs[{number}]"
        if first == f"{prefix}_type":
            return f"{at}.machine_spec.machine_type"
        if first == f"{prefix}_count":
            return f"{at}.replica_count"
        if first == f"{prefix}_config":
            return f"{at}.{_of_config(rest.lstrip('.'), program)}"
    return name


def _of_config(name: str, program: str) -> str:
    """The field of a pool by that of its replica config."""
    if name.startswith("accelerator_config"):
        return f"machine_spec.accelerator_{'count' if name.endswith('count') else 'type'}"
    if name.startswith("disk_config"):
        return name.replace("disk_config", "disk_spec", 1)
    if name == "image_uri":
        return f"{program}.{'image_uri' if program == _CONTAINER else 'executor_image_uri'}"
    return re.sub(r"^container_(command|args)", rf"{program}.\1", name)
