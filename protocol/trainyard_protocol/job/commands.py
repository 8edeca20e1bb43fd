"""Commands of replicas: what a program is started with."""

import shlex
from collections.abc import Mapping, Sequence

from trainyard_protocol.job.keys.secrets import OWN_PREFIXES
from trainyard_protocol.job.training_input import ReplicaConfig, TrainingInput

PROGRAM = "trainyard_program"
"""The module that launches a program, and the name of its wheel."""


_CONFIGS = ("master_config", "worker_config", "parameter_server_config", "evaluator_config")


def filled(training_input: TrainingInput, variables: Mapping[str, str]) -> TrainingInput:
    """The training input with the values of these variables in place of their placeholders in arguments:
    `{after.job_dir}` is that of TRAINYARD_AFTER_JOB_DIR."""
    values = {
        f"{{{name.removeprefix(OWN_PREFIXES[0]).lower().replace('_', '.', 1)}}}": value
        for name, value in variables.items()
    }

    def words(arguments: Sequence[str]) -> tuple[str, ...]:
        for placeholder, value in values.items():
            arguments = [word.replace(placeholder, value) for word in arguments]
        return tuple(arguments)

    if not values:
        return training_input
    changed: dict[str, object] = {"args": words(training_input.args)} if training_input.args else {}
    for name in _CONFIGS:
        config = getattr(training_input, name)
        given = [field for field in ("container_command", "container_args") if config and getattr(config, field)]
        if given:
            changed[name] = config.model_copy(update={field: words(getattr(config, field)) for field in given})
    return training_input.model_copy(update=changed)


def arguments(training_input: TrainingInput, job_dir: str = "") -> list[str]:
    """The program's arguments: the job's own, then `--job-dir DIR` as two tokens, last, if the user gave a jobDir. The
    program of a custom job has its directories in variables alone."""
    flag = ["--job-dir", job_dir] if job_dir and training_input.custom_job is None else []
    return [*training_input.args, *flag]


def module_command(training_input: TrainingInput, python: str = "python3") -> list[str]:
    """The command of a package job: `python3 -m MODULE ARGS... --job-dir DIR`, or that of the launcher where the
    command line has packed the program: `python3 -m trainyard_program MODULE ARGS... --job-dir DIR`."""
    launcher = [PROGRAM] if is_program(training_input) else []
    words = arguments(training_input, training_input.job_dir)
    return [python, "-m", *launcher, training_input.python_module, *words]


def is_program(training_input: TrainingInput) -> bool:
    """Whether one of the packages is a program with its files as they are, and a launcher."""
    names = (uri.rpartition("/")[2] for uri in training_input.package_uris)
    return any(name.startswith(f"{PROGRAM}-") for name in names)


def container_arguments(training_input: TrainingInput, config: ReplicaConfig) -> list[str]:
    """The arguments of a custom image's entry point: containerArgs, or else the job's arguments."""
    return list(config.container_args) or arguments(training_input, training_input.job_dir)


def reproduce(variables: Mapping[str, str], command: Sequence[str]) -> str:
    """The command line that starts the same replica by hand, quoted for a POSIX shell."""
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    return " \\\n  ".join(["env", *words, shlex.join(command)])
