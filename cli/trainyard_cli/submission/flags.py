"""Flags of `jobs submit training` and `jobs validate`, with the config fields that they set."""

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from trainyard_cli.submission.sweep import MAX_AT_ONCE, STYLES, Sweep, fields
from trainyard_cli.submission.word import Word

_F = TypeVar("_F", bound=Callable[..., Any])

_STUDY = "trainingInput.hyperparameters"
_NOTIFICATIONS = "trainingInput.notifications"
ENGINE_OPTIONS: Mapping[str, Mapping[str, type]] = {
    "slurm": {"account": str, "qos": str, "constraint": str, "reservation": str, "exclusive": str, "setup": list},
    "kubernetes": {
        "labels": dict,
        "annotations": dict,
        "nodeSelector": dict,
        "resources": dict,
        "serviceAccount": str,
        "capabilities": list,
        "queue": str,
    },
}
"""The options of each engine, as in `trainyard_protocol.job.engine_options`, which is slow to load."""

SCALE_TIERS = ("basic", "basic-gpu", "basic-tpu", "custom", "premium-1", "standard-1")


class TierChoice(click.Choice[str]):
    """A scale tier in both spellings: `standard-1` as gcloud's help has it, and `STANDARD_1` as configs have it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(str(value).replace("_", "-"), param, ctx)


class KeyValues(Word[Mapping[str, str]]):
    """gcloud's dictionary syntax `k=v,k2=v2`. With `keys` no others are allowed; `required` names a mandatory one."""

    name = "KEY=VALUE,..."

    def __init__(self, *keys: str, required: str = "") -> None:
        self._keys = keys
        self._required = required

    def read(self, text: str) -> Mapping[str, str]:
        pairs: dict[str, str] = {}
        for item in filter(None, text.split(",")):
            key, separator, value = item.partition("=")
            if not separator or not key:
                raise ValueError(f"Bad syntax for dict arg: [{item}]; write KEY=VALUE,...")
            if self._keys and key not in self._keys:
                raise ValueError(f"valid keys are [{', '.join(self._keys)}]; received: {key}")
            pairs[key] = value
        if self._required and not pairs.get(self._required):
            raise ValueError(f"[{text}] lacks {self._required}=, which is required.")
        return pairs


class Variable(Word[tuple[str, str]]):
    """`NAME=VALUE`, or `NAME` for the value that the variable has here, as of `docker run --env`."""

    name = "NAME[=VALUE]"

    def read(self, text: str) -> tuple[str, str]:
        name, separator, value = text.partition("=")
        if not name:
            raise ValueError(f"[{text}] has no name; write NAME=VALUE, or NAME for its value here.")
        if separator or name in os.environ:
            return name, value if separator else os.environ[name]
        if os.path.isfile(name):  # noqa: PTH113 - loads no pathlib
            raise ValueError(f"{name} is a file; write --env-file {name}.")
        raise ValueError(f"{name} is not set here; write {name}=VALUE.")


class EnvFile(Word[tuple[tuple[str, str], ...]]):
    """A file of variables."""

    name = "FILE"

    def read(self, text: str) -> tuple[tuple[str, str], ...]:
        from pathlib import Path

        from trainyard_cli.submission.foreign import env_file

        return env_file.read(Path(text).expanduser(), os.environ)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> "list[click.shell_completion.CompletionItem]":
        return click.Path().shell_complete(ctx, param, incomplete)


class NamedMount(Word[tuple[str, str]]):
    """`NAME:/PATH`, or `NAME` for /mnt/NAME."""

    name = "NAME[:/PATH]"

    def read(self, text: str) -> tuple[str, str]:
        name, colon, path = text.partition(":")
        if not name or (colon and not path) or name.startswith("/"):
            raise ValueError(f"[{text}] must look like imagenet:/data: a mount's name, no directory.")
        return name, path


class SetArgument(Word[tuple[str, str]]):
    """`NAME=VALUE`; the dashes of a flag may be left out."""

    name = "NAME=VALUE"

    def read(self, text: str) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        if not equals or not name.strip("-"):
            raise ValueError(f"[{text}] must look like NAME=VALUE, such as epochs=10.")
        return name, value


class DurationText(Word[str]):
    """`10m`; the value is the API's, `600s`."""

    name = "DURATION"

    def read(self, text: str) -> str:
        from trainyard_protocol.lines.time_parsing import parse_duration

        try:
            return f"{parse_duration(text).total_seconds():.0f}s"
        except ValueError as error:
            raise ValueError(f"{error}.") from error


class EngineOption(Word[tuple[str, str, str, str]]):
    """`ENGINE.OPTION=VALUE`, or `ENGINE.OPTION.KEY=VALUE` of a mapping: engine, option, key or "", and value."""

    name = "ENGINE.OPTION=VALUE"

    def read(self, text: str) -> tuple[str, str, str, str]:
        path, separator, value = text.partition("=")
        engine, _, rest = path.partition(".")
        option, _, key = rest.partition(".")
        options = ENGINE_OPTIONS.get(engine)
        if not separator or options is None:
            example = "write slurm.qos=high or kubernetes.labels.team=vision"
            raise ValueError(f"[{text}] is not an option of an engine; {example}.")
        if option not in options:
            raise ValueError(f"{engine} has no option {option!r}; allowed: {', '.join(options)}.")
        if (options[option] is dict) is not bool(key):
            form = f"{engine}.{option}=VALUE" if key else f"{engine}.{option}.KEY=VALUE"
            raise ValueError(f"[{text}] must look like {form}.")
        return engine, option, key, value


class CommaSeparated(Word[tuple[str, ...]]):
    """`a,b,c`"""

    name = "A,B,..."

    def read(self, text: str) -> tuple[str, ...]:
        return tuple(filter(None, text.split(",")))


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `path` is the job field that it sets; None for a flag of submit itself."""

    name: str
    help: str
    path: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

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
        yield Flag(f"--{flag}-count", f"Number of {what}.", f"trainingInput.{prefix}Count", {"type": click.IntRange(0)})
    yield Flag(
        f"--{flag}-accelerator",
        f"Accelerators of each of {what}; count defaults to 1.",
        f"{config}.acceleratorConfig",
        {"type": KeyValues("type", "count", required="type"), "metavar": "type=TYPE,count=N"},
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
    ),
    Flag(
        "--env-file",
        "A file of variables as dotenv and Docker Compose read it: NAME=VALUE, or NAME as it is here, with comments, "
        "quotes and export; $NAME is not expanded. May be given several times; --env wins over it, both over the "
        "config's.",
        "trainingInput.env",
        {"type": EnvFile(), "multiple": True, "metavar": "FILE"},
    ),
    Flag(
        "--env",
        "A variable of the program's environment; without VALUE as it is here. May be given several times, and "
        "replaces the config's of this name.",
        "trainingInput.env",
        {"type": Variable(), "multiple": True, "metavar": "NAME[=VALUE]"},
    ),
    Flag(
        "--mount",
        "A directory that the site names, such as a data set, at this path of containers; every program finds it in "
        "$TRAINYARD_MOUNT_NAME. May be given several times, and replaces the config's of this name.  "
        "[default of PATH: /mnt/NAME]",
        "trainingInput.mounts",
        {"type": NamedMount(), "multiple": True, "metavar": "NAME[:/PATH]"},
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
        "--notify",
        "A notification channel of the project, a mail address or a URL that is notified when the job ends or stalls. "
        "May be given several times, and replaces the config's of this destination.",
        _NOTIFICATIONS,
        {"multiple": True, "metavar": "CHANNEL|ADDRESS|URL"},
    ),
    Flag(
        "--notify-on",
        "An event to notify of: end, failure, stall, or a metric beyond a bound such as 'loss > 5'. May be given "
        "several times.  [default: end and stall]",
        _NOTIFICATIONS,
        {"multiple": True, "metavar": "EVENT"},
    ),
    Flag(
        "--engine-option",
        "An option of Slurm or Kubernetes that the operator allows, such as slurm.qos=high or "
        "kubernetes.labels.team=vision. May be given several times, and replaces the config's of this name.",
        "trainingInput.engineOptions",
        {"type": EngineOption(), "multiple": True, "metavar": "ENGINE.OPTION[.KEY]=VALUE"},
    ),
    Flag(
        "--sweep",
        "Train with each combination of these values of parameters: a study of GRID_SEARCH. May be given several "
        "times.",
        _STUDY,
        {"type": Sweep(), "multiple": True, "metavar": "NAME=VALUE,..."},
    ),
    Flag(
        "--sweep-style",
        "Whether trials get --name VALUE, --name=VALUE, or name=VALUE as Hydra and OmegaConf read it.  [default: the "
        "config's, or as the program's source says, or flags]",
        f"{_STUDY}.argumentStyle",
        {"type": click.Choice(STYLES, case_sensitive=False)},
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
        return {**_of_files(self.given.get("env_file", ())), **dict(self.given.get("env", ()))}

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


def merge(data: Mapping[str, Any], flags: JobFlags) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the flags into the config, and map each proto path that a flag set to the flag. Pure.

    A config value that should be a mapping and is not stays, for validation to report.
    """
    job: dict[str, Any] = copy.deepcopy(dict(data))
    origins: dict[str, str] = {}
    for flag in FLAGS:
        if flag.path is None or flag.parameter not in flags.given:
            continue
        for path, value in _leaves(flag, flags.given[flag.parameter], job):
            if put(job, path, value):
                proto = flag.proto_path
                leaf = _snake(path.removeprefix(flag.path).lstrip("."))
                key = f"{proto}.{leaf}" if leaf else proto
                origins[key] = f"{origins[key]}, {flag.name}" if key in origins else flag.name
    return job, origins


def put(job: dict[str, Any], path: str, value: object) -> bool:
    """Set one field of a job in place, in the config's spelling. False if a parent is not a mapping."""
    node: Any = job
    *parents, last = path.split(".")
    for name in parents:
        key = spelling(node, name)
        if node.get(key) is None:
            node[key] = {}
        node = node[key]
        if not isinstance(node, dict):
            return False
    node[spelling(node, last)] = value
    return True


def get(job: Mapping[str, Any], path: str) -> Any:
    """One field of a job, in either spelling; None if absent."""
    node: Any = job
    for name in path.split("."):
        if not isinstance(node, Mapping):
            return None
        node = node.get(spelling(node, name))
    return node


def spelling(mapping: Mapping[Any, Any], name: str) -> str:
    """`name` (camelCase) as the mapping spells it: snake_case if it has that key."""
    snake = _snake(name)
    return snake if snake in mapping and name not in mapping else name


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name)


def _leaves(flag: Flag, value: Any, job: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    path = flag.path or ""
    if flag.name == "--labels":
        yield path, {key: text for pairs in value for key, text in pairs.items()}
    elif flag.name == "--set-secrets":
        pairs = {key: text for pairs in value for key, text in pairs.items()}
        yield path, [_secret(key, name) for key, name in pairs.items()]
    elif flag.name in ("--env", "--env-file"):
        given = get(job, path)
        variables = dict(value) if flag.name == "--env" else _of_files(value)
        yield path, {**given, **variables} if isinstance(given, Mapping) else variables
    elif flag.name == "--mount":
        mounts = {name: {"name": name, **({"path": at} if at else {})} for name, at in value}
        given = get(job, path)
        kept = [item for item in given if _name_of(item) not in mounts] if isinstance(given, list | tuple) else []
        yield path, [*kept, *mounts.values()]
    elif flag.name in ("--notify", "--notify-on"):
        yield path, _notifications(flag, value, get(job, path))
    elif flag.name == "--engine-option":
        yield from _engine_options(path, value, job)
    elif flag.name == "--sweep":
        given = get(job, path)
        for name, item in fields(value, given if isinstance(given, Mapping) else {}).items():
            yield f"{path}.{name}", item
    elif flag.name in ("--goal", "--scale-tier", "--sweep-style"):
        yield path, str(value).upper().replace("-", "_")
    elif flag.name.endswith("-accelerator"):
        yield f"{path}.type", value["type"].upper().replace("-", "_")
        yield f"{path}.count", value.get("count", "1")
    elif flag.name.endswith("-count"):
        yield path, str(value)
    else:
        yield path, value


def _of_files(files: Iterable[Iterable[tuple[str, str]]]) -> dict[str, str]:
    """The variables of all files; of a name the last value."""
    return {name: text for file in files for name, text in file}


def _notifications(flag: Flag, value: Sequence[str], given: object) -> list[object]:
    """The destinations with those of the flag, or with the events of the flag."""
    present = list(given) if isinstance(given, list | tuple) else []
    if flag.name == "--notify":
        kept = [item for item in present if not isinstance(item, Mapping) or item.get("to") not in value]
        return [*kept, *({"to": to} for to in dict.fromkeys(value))]
    events = {"events": list(value)}
    return [{**item, **events} if isinstance(item, Mapping) else item for item in present] or [events]


def _engine_options(
    path: str, options: Iterable[tuple[str, str, str, str]], job: Mapping[str, Any]
) -> Iterator[tuple[str, object]]:
    """The options by their paths. One that is a list has all values that are given, one that is a mapping also the
    config's."""
    values: dict[str, Any] = {}
    for engine, option, key, text in options:
        at = f"{path}.{engine}.{option}"
        if key:
            given = get(job, at)
            values.setdefault(at, dict(given) if isinstance(given, Mapping) else {})[key] = text
        elif ENGINE_OPTIONS[engine][option] is list:
            values.setdefault(at, []).append(text)
        else:
            values[at] = text
    yield from values.items()


def _name_of(item: object) -> object:
    """The name of an entry of the config, which may be anything."""
    return item.get("name") if isinstance(item, Mapping) else None


def _secret(target: str, name: str) -> dict[str, str]:
    """The reference that gcloud writes `TARGET=NAME`: a path begins with a slash."""
    if target.startswith("/"):
        return {"name": name, "file": target}
    return {"name": name} if target == name else {"name": name, "env": target}
