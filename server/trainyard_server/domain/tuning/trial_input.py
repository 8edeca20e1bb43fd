"""The training input of a trial. Pure."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard_protocol.job import custom_job_training
from trainyard_protocol.job.custom_jobs import CustomJobSpec
from trainyard_protocol.job.hyperparameters import ArgumentStyle
from trainyard_protocol.job.parsing import parse, parse_training_input
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_protocol.job.tuning_jobs import GivenTuningJob

_CONFIGS = ("masterConfig", "workerConfig", "parameterServerConfig", "evaluatorConfig")
_MOST_OF_NAME = 100  # characters of a tuning job's displayName in those of its trials


def trial_id(study_id: str, number: int) -> str:
    """The id of a trial's job. No user can create it: an id has no point."""
    return f"{study_id}.{number}"


def trial_input(study: TrainingInput, number: int, parameters: Mapping[str, str]) -> TrainingInput:
    """The study's training input with the parameters as further arguments, and a jobDir of its own: anybody can submit
    it as a job that trains the same."""
    style = study.hyperparameters.argument_style if study.hyperparameters is not None else ArgumentStyle.FLAGS
    flags = [word for name, value in parameters.items() for word in style.words(name, value)]
    fields = study.canonical()
    fields.pop("hyperparameters", None)
    if given := study.tuning_job:
        del fields["tuningJob"]
        job_spec = _job_spec(given, number, flags)
        fields |= custom_job_training.training_input(
            parse(CustomJobSpec, job_spec, "custom_job.job_spec"), study.region
        )
        name = f"{given.display_name[:_MOST_OF_NAME]} trial {number}"
        return parse_training_input({**fields, "customJob": {"displayName": name, "jobSpec": job_spec}})
    fields["args"] = [*study.args, *flags]
    for name in _CONFIGS:
        config: dict[str, Any] = fields.get(name, {})
        if config.get("containerArgs"):  # they replace the job's arguments
            fields[name] = config | {"containerArgs": [*config["containerArgs"], *flags]}
    if study.job_dir:
        fields["jobDir"] = f"{study.job_dir.rstrip('/')}/{number}"
    return parse_training_input(fields)


def _job_spec(given: GivenTuningJob, number: int, flags: Sequence[str]) -> dict[str, Any]:
    """The jobSpec of a trial of Vertex AI's tuning job: the programs of all pools get the parameters."""
    spec = copy.deepcopy(given.trial_job_spec)
    for pool in spec.get("workerPoolSpecs", ()):
        for program in (pool[name] for name in ("containerSpec", "pythonPackageSpec") if name in pool):
            program["args"] = [*program.get("args", ()), *flags]
    if base := spec.get("baseOutputDirectory", {}).get("outputUriPrefix"):
        spec["baseOutputDirectory"] = {"outputUriPrefix": f"{base.rstrip('/')}/{number}"}
    return spec
