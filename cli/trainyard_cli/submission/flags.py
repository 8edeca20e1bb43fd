"""Flags of `jobs submit training` and `jobs validate`, with the config fields that they set."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from trainyard_cli.submission import job_fields
from trainyard_cli.submission.flag_types import (
    CommaSeparated,
    DurationText,
    EngineOption,
    EnvFile,
    KeyValues,
    NamedMount,
    TierChoice,
    Variable,
)
from trainyard_cli.submission.job_data import JobData, snake
from trainyard_cli.submission.sweep import MAX_AT_ONCE, STYLES, Sweep

_F = TypeVar("_F", bound=Callable[..., Any])


_STUDY = "trainingInput.hyperparameters"
_NOTIFICATIONS = "trainingInput.notifications"
SCALE_TIERS = ("basic", "basic-gpu", "basic-tpu", "custom", "premium-1", "standard-1")


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `path` is the job field that it sets; None for a flag of submit itself. `sets`: the fields that a value
    sets there, in a job that has the config's."""

    name: str
    help: str
    path: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    sets: Callable[[str, Any, JobData], job_fields.Fields] = job_fields.whole

    @property
    def parameter(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def proto_path(self) -> str:
        """The field's name in violations."""
        from pydantic.alias_generators import to_snake

        path = ".".join(map(to_snake, (self.path or "").split(".")))
        return path.removeprefix("training_input.") if path.startswith("training_input.") else f"job.{path}"


def _replica_flags(flag: str, prefix: str, what: str, *, counted: bool) -> Iterator[Flag]:
    config = f"trainingInput.{prefix}Config"
    yield Flag(f"--{flag}-machine-type", f"Machine type of {what}.", f"trainingInput.{prefix}Type", {"metavar": "TYPE"})
    if counted:
        yield Flag(
            f"--{flag}-count",
            f"Number of {what}.",
            f"trainingInput.{prefix}Count",
            {"type": click.IntRange(0)},
            job_fields.number,
        )
    yield Flag(
        f"--{flag}-accelerator",
        f"Accelerators of each of {what}; count defaults to 1.",
        f"{config}.acceleratorConfig",
        {"type": KeyValues("type", "count", required="type"), "metavar": "type=TYPE,count=N"},
        job_fields.accelerator,
    )
    yield Flag(f"--{flag}-image-uri", f"Container image of {what}.", f"{config}.imageUri", {"metavar": "URI"})


FLAGS: tuple[Flag, ...] = (
    Flag("--region", "Recorded with the job. Optional.", "trainingInput.region"),
    Flag(
        "--module-name",
        "The module to run, such as trainer.task, or the file, such as scripts/train.py.  [default: the only one that "
        "starts a program]",
        "trainingInput.pythonModule",
    ),
    Flag(
        "--package-path",
        "Program to upload: a Python package, a directory of scripts, a notebook, or one script (.py or .sh).",
        options={"type": click.Path(), "metavar": "PATH"},
    ),
    Flag(
        "--include",
        "A file or directory to upload with the program although git ignores it, or it looks like a secret. May be "
        "given several times.",
        options={"type": click.Path(), "multiple": True, "metavar": "PATH"},
    ),
    Flag(
        "--build",
        "Directory with a Dockerfile: build it with this machine's container engine, and use the image.",
        options={"type": click.Path(), "metavar": "DIR"},
    ),
    Flag(
        "--packages",
        "Built packages (files or gs:// addresses) to install. They replace the config's packageUris.",
        options={"type": CommaSeparated(), "multiple": True, "metavar": "PACKAGE,..."},
    ),
    Flag(
        "--staging-bucket",
        "Bucket that packages are uploaded to.  [default: the server]",
        options={"metavar": "gs://BUCKET"},
    ),
    Flag("--job-dir", "Output directory of the job: a directory or gs://BUCKET/DIR.", "trainingInput.jobDir"),
    Flag(
        "--pass-job-dir",
        "Pass --job-dir to a script or a directory of scripts too, as a package gets it.",
        options={"is_flag": True},
    ),
    Flag(
        "--scale-tier",
        "Number of replicas and their machine types.",
        "trainingInput.scaleTier",
        {"type": TierChoice(SCALE_TIERS, case_sensitive=False)},
        job_fields.constant,
    ),
    Flag(
        "--cpus",
        "CPUs of the master, and of each other replica without a machine type: the machine types local-N.",
        options={"type": click.IntRange(1), "metavar": "N"},
    ),
    Flag("--runtime-version", "Version of the pre-built runtime.", "trainingInput.runtimeVersion"),
    Flag("--python-version", "Version of Python.", "trainingInput.pythonVersion"),
    Flag("--service-account", "Recorded with the job.", "trainingInput.serviceAccount"),
    Flag(
        "--enable-web-access",
        "Allow `jobs exec`, `shell` and `port-forward`.",
        "trainingInput.enableWebAccess",
        {"is_flag": True},
    ),
    Flag(
        "--use-chief-in-tf-config",
        'Name the master "chief" in TF_CONFIG.',
        "trainingInput.useChiefInTfConfig",
        {"type": click.BOOL, "is_flag": False, "flag_value": "true", "metavar": "[BOOL]"},
    ),
    Flag(
        "--set-secrets",
        "Secrets of the project, as variables or files. They replace the config's.",
        "trainingInput.secrets",
        {"type": KeyValues(), "multiple": True, "metavar": "ENV=NAME,/PATH=NAME,..."},
        job_fields.secrets,
    ),
    Flag(
        "--env-file",
        "A file of variables as dotenv and Docker Compose read it: NAME=VALUE, or NAME as it is here, with comments, "
        "quotes and export; $NAME is not expanded. May be given several times; --env wins over it, both over the "
        "config's.",
        "trainingInput.env",
        {"type": EnvFile(), "multiple": True, "metavar": "FILE"},
        job_fields.env_files,
    ),
    Flag(
        "--env",
        "A variable of the program's environment; without VALUE as it is here. May be given several times, and "
        "replaces the config's of this name.",
        "trainingInput.env",
        {"type": Variable(), "multiple": True, "metavar": "NAME[=VALUE]"},
        job_fields.env,
    ),
    Flag(
        "--mount",
        "A directory that the site names, such as a data set, at this path of containers; every program finds it in "
        "$TRAINYARD_MOUNT_NAME. May be given several times, and replaces the config's of this name.  "
        "[default of PATH: /mnt/NAME]",
        "trainingInput.mounts",
        {"type": NamedMount(), "multiple": True, "metavar": "NAME[:/PATH]"},
        job_fields.mounts,
    ),
    Flag(
        "--keep-on-failure",
        "Keep a replica whose program fails for this time (90s, 10m, 2h; at most 1d), to look at it with jobs shell.",
        "trainingInput.scheduling.keepOnFailure",
        {"type": DurationText()},
    ),
    Flag(
        "--band",
        "Band of priority: jobs of a higher band go first, whatever their priority is. batch may have to give way.  "
        "[default: normal]",
        "trainingInput.scheduling.band",
        {"type": click.Choice(("production", "normal", "batch"), case_sensitive=False)},
    ),
    Flag(
        "--after",
        "Start once these jobs have succeeded; JOB:ended: have ended; 'JOB:metrics.val_loss<0.3': with this last "
        "value. They replace the config's.",
        "trainingInput.after",
        {"type": CommaSeparated(), "multiple": True, "metavar": "JOB[:CONDITION],..."},
        job_fields.joined,
    ),
    Flag(
        "--notify",
        "A notification channel of the project, a mail address or a URL that is notified when the job ends or stalls. "
        "May be given several times, and replaces the config's of this destination.",
        _NOTIFICATIONS,
        {"multiple": True, "metavar": "CHANNEL|ADDRESS|URL"},
        job_fields.notify,
    ),
    Flag(
        "--notify-on",
        "An event to notify of: end, failure, stall, or a metric beyond a bound such as 'loss > 5'. May be given "
        "several times.  [default: end and stall]",
        _NOTIFICATIONS,
        {"multiple": True, "metavar": "EVENT"},
        job_fields.notify_on,
    ),
    Flag(
        "--engine-option",
        "An option of Slurm or Kubernetes that the operator allows, such as slurm.qos=high or "
        "kubernetes.labels.team=vision. May be given several times, and replaces the config's of this name.",
        "trainingInput.engineOptions",
        {"type": EngineOption(), "multiple": True, "metavar": "ENGINE.OPTION[.KEY]=VALUE"},
        job_fields.engine_options,
    ),
    Flag(
        "--sweep",
        "Train with each combination of these values of parameters: a study of GRID_SEARCH. May be given several "
        "times.",
        _STUDY,
        {"type": Sweep(), "multiple": True, "metavar": "NAME=VALUE,..."},
        job_fields.sweep,
    ),
    Flag(
        "--sweep-style",
        "Whether trials get --name VALUE, --name=VALUE, or name=VALUE as Hydra and OmegaConf read it.  [default: the "
        "config's, or as the program's source says, or flags]",
        f"{_STUDY}.argumentStyle",
        {"type": click.Choice(STYLES, case_sensitive=False)},
        job_fields.constant,
    ),
    Flag(
        "--metric",
        "Metric by which a study finds its best trial.  [default: of a sweep the only validation metric]",
        f"{_STUDY}.hyperparameterMetricTag",
    ),
    Flag(
        "--goal",
        "Whether a study's metric is to be large or small.  [default: the config's, or by the name of --metric]",
        f"{_STUDY}.goal",
        {"type": click.Choice(("maximize", "minimize"), case_sensitive=False)},
        job_fields.constant,
    ),
    Flag(
        "--parallel-trials",
        f"Trials of a study at a time.  [default: the config's; of a sweep all, at most {MAX_AT_ONCE}]",
        f"{_STUDY}.maxParallelTrials",
        {"type": click.IntRange(1)},
    ),
    Flag(
        "--early-stopping",
        "Stop trials that fall behind, by this rule.  [default: the config's]",
        f"{_STUDY}.earlyStopping.rule",
        {"type": click.Choice(("asha", "median"), case_sensitive=False)},
    ),
    Flag(
        "--labels",
        "Labels. They replace the config's.",
        "labels",
        {"type": KeyValues(), "multiple": True, "metavar": "KEY=VALUE,..."},
        job_fields.labels,
    ),
    *_replica_flags("master", "master", "the master", counted=False),
    *_replica_flags("worker", "worker", "the workers", counted=True),
    *_replica_flags("parameter-server", "parameterServer", "the parameter servers", counted=True),
)


@dataclass(frozen=True, slots=True)
class JobFlags:
    """The flags that were given, by their names as parameters (`worker_count`)."""

    given: Mapping[str, Any]

    def text(self, parameter: str) -> str:
        return str(self.given.get(parameter) or "")

    @property
    def env(self) -> dict[str, str]:
        """The variables of --env-file and --env."""
        return {**job_fields.of_files(self.given.get("env_file", ())), **dict(self.given.get("env", ()))}

    @property
    def packages(self) -> tuple[str, ...]:
        return tuple(word for words in self.given.get("packages", ()) for word in words)


def job_flags(function: _F) -> _F:
    """Decorator that adds all flags of the table; `pop_flags` collects their values."""
    for flag in reversed(FLAGS):
        options = {"default": None, **flag.options}
        if options.get("multiple"):
            options["default"] = ()
        function = click.option(flag.name, help=flag.help, **options)(function)
    return function


def pop_flags(parameters: dict[str, Any]) -> JobFlags:
    """Remove the table's flags from a command's parameters and return them."""
    values = {flag.parameter: parameters.pop(flag.parameter) for flag in FLAGS}
    return JobFlags({name: value for name, value in values.items() if value is not None and value != ()})


def merge(data: Mapping[str, Any], flags: JobFlags) -> tuple[JobData, dict[str, str]]:
    """Merge the flags into the config, and map each proto path that a flag set to the flag. Pure.

    A config value that should be a mapping and is not stays, for validation to report.
    """
    job = JobData(data)
    origins: dict[str, str] = {}
    for flag in FLAGS:
        if flag.path is None or flag.parameter not in flags.given:
            continue
        for path, value in flag.sets(flag.path, flags.given[flag.parameter], job):
            if job.put(path, value):
                proto = flag.proto_path
                leaf = snake(path.removeprefix(flag.path).lstrip("."))
                key = f"{proto}.{leaf}" if leaf else proto
                origins[key] = f"{origins[key]}, {flag.name}" if key in origins else flag.name
    return job, origins
