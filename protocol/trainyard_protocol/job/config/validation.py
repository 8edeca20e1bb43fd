"""Validation rules of a training input across fields and against the machine catalogue. Pure.

Each violation has the field, its value and what is allowed. All violations are reported at once.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake

from trainyard_protocol.errors import InvalidArgument, Violation, quoted
from trainyard_protocol.fields import did_you_mean
from trainyard_protocol.job.cluster import TASK_TYPES, TaskType
from trainyard_protocol.job.config import placeholders, python_versions, tuning_rules
from trainyard_protocol.job.keys import dependencies, mounts, secrets
from trainyard_protocol.job.keys import env as env_rules
from trainyard_protocol.job.machines import Catalog, MachineType, config_of, replicas_of
from trainyard_protocol.job.parsing import parse_job
from trainyard_protocol.job.ranks import RANK_NAMES
from trainyard_protocol.job.resources import is_tpu
from trainyard_protocol.job.training_input import Job, ScaleTier, TrainingInput
from trainyard_protocol.net import gcs

MAX_REPLICAS = 1000
"""Replicas of all task types together. The largest tier of the real service has 31."""

_MODULE_PART = re.compile(r"\w[^./\\\x00-\x1f]*")
"""A part of a module's name as `python -m` takes it: it need not be an identifier."""

_FIELDS: dict[TaskType, str] = {
    "master": "master",
    "worker": "worker",
    "ps": "parameter_server",
    "evaluator": "evaluator",
}
"""The proto prefix of each task type's fields: `<prefix>_type`, `<prefix>_count`, `<prefix>_config`."""


def checked_job(data: object, catalog: Catalog) -> Job:
    """Parse the job of a create request and check it. Raises InvalidArgument with every violation: where values cannot
    be parsed, also those of the rules for the others."""
    try:
        job = parse_job(data)
    except InvalidArgument as error:
        if error.more:
            raise
        raise InvalidArgument([*error.violations, *_of_the_rest(data, catalog)]) from None
    check(job.training_input, catalog)
    return job


def check(training_input: TrainingInput, catalog: Catalog) -> None:
    """Raises InvalidArgument with every violation."""
    violations = list(_violations(training_input, catalog))
    if violations:
        raise InvalidArgument(violations)


def check_addresses(training_input: TrainingInput) -> None:
    """Raises InvalidArgument for values that a tutorial left to be filled in, for locations that there cannot be, for
    versions of Python that the runtime never had, and for arguments and variables that are too long. Needs no
    catalog."""
    violations = list(_addresses(training_input))
    if violations:
        raise InvalidArgument(violations)


def _violations(ti: TrainingInput, catalog: Catalog, unreadable: Collection[str] = frozenset()) -> Iterator[Violation]:
    """`unreadable`: fields that were sent and are not in the training input. Rules that need them are left out."""
    if "master_config" not in unreadable:
        yield from _program(ti)
    yield from _addresses(ti)
    if ti.hyperparameters is not None:
        yield from tuning_rules.violations(ti.hyperparameters)
    if "scale_tier" not in unreadable:
        yield from _tier(ti)
    yield from _size(ti, catalog)
    if not {"scale_tier", "worker_count"}.intersection(unreadable):
        yield from _workers(ti, catalog)
    yield from _machines(ti, catalog)
    if "master_config" not in unreadable:
        yield from _containers(ti)
    yield from secrets.clashes(ti.secrets, ti.env)
    yield from mounts.clashes(ti.mounts, ti.secrets, ti.job_dir)
    if "after" not in unreadable:
        yield from dependencies.without_predecessor(ti.after, ti.args)


def _of_the_rest(data: object, catalog: Catalog) -> Iterator[Violation]:
    """Violations of the rules by the fields of a training input that can be parsed, of which others cannot. A missing
    field is not reported: what cannot be parsed may stand for it."""
    body = data if isinstance(data, Mapping) else {}
    sent = body.get("trainingInput", body.get("training_input"))
    if not isinstance(sent, Mapping):
        return
    rest = {to_camel(str(key)): value for key, value in sent.items() if _is_readable(key, value)}
    ti = TrainingInput.model_validate(rest)
    unreadable = {to_snake(str(key)) for key in sent} - ti.model_fields_set
    if not unreadable <= TrainingInput.model_fields.keys():  # a misspelt name may stand for any field
        unreadable |= TrainingInput.model_fields.keys() - ti.model_fields_set
    if "scale_tier" in unreadable:  # CUSTOM is the tier that implies no machines
        ti = ti.model_copy(update={"scale_tier": ScaleTier.CUSTOM})
    for violation in _violations(ti, catalog, unreadable):
        if re.split(r"[.\[]", violation.field)[0] in ti.model_fields_set:
            yield violation


def _is_readable(key: object, value: object) -> bool:
    try:
        TrainingInput.model_validate({key: value})
    except ValidationError:
        return False
    return True


def _program(ti: TrainingInput) -> Iterator[Violation]:
    if ti.image_uri:
        if ti.runtime_version:
            yield Violation("runtime_version", "Only one of master_config.image_uri, runtime_version can be set.")
        if ti.package_uris and not ti.python_module:
            yield Violation(
                "python_module", "is required with packageUris: the module of the packages that is run in the image."
            )
    elif not ti.python_module:
        yield Violation(
            "python_module", "is required for a package job (or give master_config.image_uri for a custom image)."
        )
    if ti.python_module and not all(map(_MODULE_PART.fullmatch, ti.python_module.split("."))):
        yield Violation(
            "python_module", f"must be a module's dotted name such as trainer.task; this is {quoted(ti.python_module)}."
        )


def image_uris(ti: TrainingInput) -> dict[str, str]:
    """The images that a job names, by field."""
    names = {f"{prefix}_config": getattr(ti, f"{prefix}_config") for prefix in _FIELDS.values()}
    return {f"{name}.image_uri": config.image_uri for name, config in names.items() if config and config.image_uri}


def _addresses(ti: TrainingInput) -> Iterator[Violation]:
    """Values that a tutorial left to be filled in, locations that there cannot be, and what no program can get."""
    yield from env_rules.too_long_for_a_program(ti.args, ti.env)
    if problem := python_versions.problem_of(ti.python_version, ti.runtime_version):
        yield Violation("python_version", problem)
    for name, uri in image_uris(ti).items():
        if names := placeholders.in_image(uri):
            yield Violation(name, f"{uri} is a placeholder ({', '.join(names)}). Give the name of an image.")
    addresses = {"job_dir": ti.job_dir} | {f"package_uris[{n}]": uri for n, uri in enumerate(ti.package_uris)}
    for name, address in addresses.items():
        if names := placeholders.in_address(address):
            yield Violation(name, f"{address} is a placeholder ({', '.join(names)}). Give a real address.")
        elif problem := _problem_of(name, address):
            yield Violation(name, problem)


def _problem_of(name: str, address: str) -> str:
    """The rest of a sentence about a location that there cannot be; "" for any other."""
    if address.startswith(gcs.SCHEME):
        return gcs.problem_of(address)
    if name != "job_dir" or not address or address.startswith("/"):
        return ""
    return (
        "must be gs://BUCKET/DIRECTORY, or an absolute path on the machine that runs the job; this is "
        f"{quoted(address)}."
    )


def _tier(ti: TrainingInput) -> Iterator[Violation]:
    if ti.scale_tier is ScaleTier.CUSTOM:
        if not ti.master_type:
            yield Violation("master_type", "is required when scale_tier is CUSTOM.")
        for task_type in TASK_TYPES[1:]:
            prefix = _FIELDS[task_type]
            machine_type, count = getattr(ti, f"{prefix}_type"), getattr(ti, f"{prefix}_count")
            if count and not machine_type:
                yield Violation(f"{prefix}_type", f"is required when {prefix}_count is set.")
        return
    for task_type in TASK_TYPES:
        prefix = _FIELDS[task_type]
        for name in (f"{prefix}_type", f"{prefix}_count"):
            if getattr(ti, name, None):
                yield Violation(
                    name,
                    f"can only be set when scale_tier is CUSTOM; it is {ti.scale_tier}. "
                    "Set scaleTier: CUSTOM (and masterType), or remove this field.",
                )


def _size(ti: TrainingInput, catalog: Catalog) -> Iterator[Violation]:
    counts = {task_type: replicas_of(ti, task_type, catalog)[1] for task_type in TASK_TYPES}
    if sum(counts.values()) > MAX_REPLICAS:
        largest = max(counts, key=lambda task_type: counts[task_type])
        yield Violation(
            f"{_FIELDS[largest]}_count",
            f"makes a job of {sum(counts.values())} replicas; a job has at most {MAX_REPLICAS}.",
        )


def _workers(ti: TrainingInput, catalog: Catalog) -> Iterator[Violation]:
    """Rules about the number of workers. A job without them may set what launchers set: the service sets none of it."""
    least = ti.scheduling.min_workers if ti.scheduling is not None else 0
    _, workers = replicas_of(ti, "worker", catalog)
    if not 0 <= least <= workers:
        text = f"must be between 0 and the number of workers, which is {workers}; this is {least}."
        yield Violation("scheduling.min_workers", text)
    for name in sorted(RANK_NAMES.intersection(ti.env)) if workers else ():
        yield Violation("env", f"sets {name}, which is another one in each replica: the service sets it.")


def _machines(ti: TrainingInput, catalog: Catalog) -> Iterator[Violation]:
    families: dict[str, str] = {}
    for task_type in TASK_TYPES:
        prefix = _FIELDS[task_type]
        requested = getattr(ti, f"{prefix}_type")
        name = requested or replicas_of(ti, task_type, catalog)[0]
        machine = catalog.machine_types.get(name)
        if requested and machine is None:
            hint = did_you_mean(name, catalog.machine_types)
            advice = hint or f"Known: {', '.join(catalog.machine_types)}."
            yield Violation(f"{prefix}_type", f"{quoted(name)} is not a machine type of this service. {advice}")
        if requested and machine and machine.family != "site":
            families.setdefault(machine.family, f"{prefix}_type")
        yield from _tpus(ti, task_type, name, machine)
        accelerators = config_of(ti, task_type).accelerator_config
        if not (machine and accelerators and accelerators.count):
            continue
        field = f"{prefix}_config.accelerator_config"
        if machine.family == "legacy":
            yield Violation(field, f"can only be set with a Compute Engine machine type; {name} is a legacy type.")
        elif accelerators.type not in machine.accelerators:
            allowed = ", ".join(machine.accelerators) or "none"
            yield Violation(f"{field}.type", f"{accelerators.type} cannot be attached to {name}; allowed: {allowed}.")
        elif accelerators.count not in machine.accelerators[accelerators.type]:
            counts = ", ".join(str(count) for count in machine.accelerators[accelerators.type])
            yield Violation(
                f"{field}.count",
                f"{accelerators.count} x {accelerators.type} cannot be attached to {name}; allowed: {counts}.",
            )
    if len(families) > 1:
        yield Violation(
            families["legacy"],
            "machine types must be all legacy or all Compute Engine; "
            f"{families['compute-engine']} is a Compute Engine type and {families['legacy']} is a legacy one.",
        )


def _tpus(ti: TrainingInput, task_type: TaskType, name: str, machine: MachineType | None) -> Iterator[Violation]:
    """Rules of the real service for the one TPU of a job, which is a worker; of Vertex AI's `cloud-tpu`, which may be
    any replica, only that its TPU is named."""
    prefix, config = _FIELDS[task_type], config_of(ti, task_type)
    if machine is not None and machine.accelerator is None and _adds_tpus_alone(machine):
        if not (config.accelerator_config and config.accelerator_config.count):
            choice = " or ".join(f"{counts[0]} x {kind}" for kind, counts in machine.accelerators.items())
            yield Violation(f"{prefix}_config.accelerator_config", f"is required with {name}: {choice}.")
        return
    has_tpu = machine is not None and machine.accelerator is not None and is_tpu(machine.accelerator.type)
    if not has_tpu:
        if machine is not None and config.tpu_tf_version:
            yield Violation(
                f"{prefix}_config.tpu_tf_version", "can only be set with a worker_type of cloud_tpu: remove it."
            )
        return
    if task_type != "worker":
        yield Violation(f"{prefix}_type", f"{name} can only be the worker_type.")
        return
    if ti.scale_tier is not ScaleTier.CUSTOM:
        return
    if ti.worker_count != 1:
        yield Violation("worker_count", f"must be 1 with a worker_type of {name}; this is {ti.worker_count}.")
    if config.image_uri and not config.tpu_tf_version:
        yield Violation(
            "worker_config.tpu_tf_version",
            "is required for a TPU worker with a custom image: the runtime version that has the image's "
            "TensorFlow, such as 2.1.",
        )


def _adds_tpus_alone(machine: MachineType) -> bool:
    return bool(machine.accelerators) and all(map(is_tpu, machine.accelerators))


def _containers(ti: TrainingInput) -> Iterator[Violation]:
    for task_type in TASK_TYPES:
        prefix = _FIELDS[task_type]
        config = config_of(ti, task_type)
        commands = [n for n in ("container_command", "container_args") if getattr(config, n)]
        for name in commands:
            if not config.image_uri:
                yield Violation(f"{prefix}_config.{name}", "needs a custom image: set imageUri beside it.")
            elif ti.args:
                yield Violation(f"{prefix}_config.{name}", "and args are mutually exclusive: remove one of the two.")
            elif ti.python_module:
                yield Violation(
                    f"{prefix}_config.{name}",
                    "and python_module are mutually exclusive: with pythonModule the image runs `python3 -m "
                    f"{ti.python_module}` with args. Remove one of the two.",
                )
        if config.image_uri and not ti.image_uri:
            yield Violation(
                f"{prefix}_config.image_uri", "needs master_config.image_uri: the master decides the kind of job."
            )
        elif ti.package_uris and config.image_uri != ti.image_uri:
            yield Violation(
                f"{prefix}_config.image_uri",
                f"must be that of the master, {ti.image_uri}, with packageUris: they are installed once, in that "
                "image.",
            )
