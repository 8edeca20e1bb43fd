"""The training input of a trial. Pure."""

from collections.abc import Mapping
from typing import Any

from trainyard_protocol.job.hyperparameters import ArgumentStyle
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.training_input import TrainingInput

_CONFIGS = ("masterConfig", "workerConfig", "parameterServerConfig", "evaluatorConfig")


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
    fields["args"] = [*study.args, *flags]
    for name in _CONFIGS:
        config: dict[str, Any] = fields.get(name, {})
        if config.get("containerArgs"):  # they replace the job's arguments
            fields[name] = config | {"containerArgs": [*config["containerArgs"], *flags]}
    if study.job_dir:
        fields["jobDir"] = f"{study.job_dir.rstrip('/')}/{number}"
    return parse_training_input(fields)
