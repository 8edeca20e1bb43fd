"""Settings of the agent: each is declared once, and given by a flag or by an environment variable.

The flag of a field `state_dir` is `--state-dir`, its variable TRAINYARD_AGENT_STATE_DIR; the flag wins. An engine
declares its own in `engines/NAME/settings.py`. `make docs` writes the table in docs/agent-settings.md from here.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from trainyard_agent.control.start_deadline import START_DEADLINE_S
from trainyard_agent.host import job_users
from trainyard_agent.host.tpus import parse_tpus
from trainyard_agent.monitoring.usage_reporter import USAGE_S
from trainyard_agent.runtimes.installing import InstallLimits
from trainyard_protocol.job.resources import Gpu
from trainyard_protocol.net.gcs import EMULATOR
from trainyard_protocol.net.trust import CA_FILE_VARIABLE

STOP_ALL_GRACE_S = 10.0
VARIABLES = "TRAINYARD_AGENT_"
"""Beginning of the names of the variables."""

_INSTALL = InstallLimits()
_Part = TypeVar("_Part", bound="EngineSettings")


def _positive(value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"must be a number above 0; this is {value!r}")
    return number


def _count(value: object) -> int:
    if not str(value).isdecimal() or int(str(value)) < 1:
        raise ValueError(f"must be a whole number above 0; this is {value!r}")
    return int(str(value))


def _positive_or_zero(value: object) -> float:
    return 0.0 if str(value) == "0" else _positive(value)


def _listed(value: object) -> object:
    """The items of a variable, which has them with blanks between."""
    return value.split() if isinstance(value, str) else value


def _url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme in ("http", "https") and parts.hostname and not parts.query:
        return text
    raise ValueError(f"must look like https://trains.example.com:8470; this is {text!r}")


def _program(text: str) -> str:
    program = shutil.which(text)
    if program is None:
        raise ValueError(f"there is no program {text!r} on this machine")
    return str(Path(program).absolute())


def _assignment(value: object) -> tuple[str, str]:
    name, equals, text = str(value).partition("=")
    if not name.isidentifier():
        raise ValueError(f"must look like NAME=VALUE or NAME; this is {value!r}")
    if name.startswith("TRAINYARD_"):
        raise ValueError(f"{name}: names that start with TRAINYARD_ are reserved")
    if not equals and name not in os.environ:
        raise ValueError(f"{name}: the agent's own environment has no such variable")
    return name, text if equals else os.environ[name]


def _user_ids(value: object) -> range:
    first, _, last = str(value).partition("-")
    if first.isdecimal() and last.isdecimal() and job_users.LEAST <= int(first) <= int(last) < 2**32 - 1:
        return range(int(first), int(last) + 1)
    raise ValueError(f"must look like 61184-65519, from {job_users.LEAST} on; this is {value!r}")


_LISTED = BeforeValidator(_listed)
_Item = TypeVar("_Item")

Many = Annotated[tuple[_Item, ...], _LISTED]
"""A setting whose flag may be repeated."""

Positive = Annotated[float, BeforeValidator(_positive)]
PositiveOrZero = Annotated[float, BeforeValidator(_positive_or_zero)]
Count = Annotated[int, BeforeValidator(_count)]
Url = Annotated[str, AfterValidator(_url)]


def setting(default: Any, help_: str, metavar: str = "") -> Any:
    """Declare a setting. `help_` may have `%(default)s`; `metavar` is the form of its value, "" for a switch."""
    return Field(default, description=help_, json_schema_extra={"metavar": metavar})


class Settings(BaseSettings):
    """Settings with flags and variables."""

    model_config = SettingsConfigDict(
        frozen=True,
        env_prefix=VARIABLES,
        arbitrary_types_allowed=True,
        validate_default=False,
        enable_decoding=False,
    )


class EngineSettings(Settings):
    """Settings that one engine has, and what must be known of it before it is loaded.

    `title` and `about` are the heading of its flags. `spans_hosts`: it goes on without its agent, and is an agent's
    only one; else it is one of those of a machine, which share its capacity. `start_deadline_s`: how long it may give
    the same reasons for not starting a run, unless --start-deadline is given. `directories`: those of a machine's state
    directory that it alone has.
    """

    title: ClassVar[str] = ""
    about: ClassVar[str | None] = None
    spans_hosts: ClassVar[bool] = False
    start_deadline_s: ClassVar[float] = START_DEADLINE_S
    directories: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def private_files(cls) -> tuple[Path, ...]:
        """Files of the engine that give its rights to whoever can open them."""
        return ()

    @classmethod
    def may_have_runs(cls, state_dir: Path) -> bool:
        """Whether runs of a machine's engine may be there, or what was prepared for them."""
        directories = (state_dir / name for name in cls.directories)
        return any(
            not path.name.startswith(".")
            for directory in directories
            if directory.is_dir()
            for path in directory.iterdir()
        )

    def problem(self, serves: bool, one_user: bool) -> str:  # noqa: ARG002 - most have none
        """The reason why an agent of this engine cannot have these settings; "" if it can. `serves`: it is to run
        jobs."""
        return ""


class AgentSettings(Settings):
    """Settings that every engine has."""

    server: str = setting("", "the server's address, such as http://127.0.0.1:8470", "URL")
    token_file: Path = setting(Path(), "file with the agent's token", "FILE")
    ca_file: Path | None = setting(
        None,
        f"the CA certificates (PEM) for an https:// server; default: ${CA_FILE_VARIABLE}, else those of the operating "
        "system",
        "FILE",
    )
    state_dir: Annotated[Path, AfterValidator(Path.absolute)] = setting(..., "directory of the agent", "DIR")
    runtime: str = setting(
        "auto",
        "how replicas of new runs may run; auto (the default): jobs with an image in containers, while an engine "
        "answers, and package jobs as processes where they may (but see packageJobs and versions of --runtimes)",
        "RUNTIME",
    )
    one_user: bool = setting(
        False,
        "all jobs are this user's own: package jobs may run as processes, with all rights of this user; without it "
        "processes need an agent that is root, and each run has a user id of its own",
    )
    job_uids: Annotated[range, BeforeValidator(_user_ids)] = setting(
        job_users.DEFAULT,
        "user ids for the processes of jobs, which nothing else on the machine has, nor another agent; "
        f"default: {job_users.DEFAULT[0]}-{job_users.DEFAULT[-1]}",
        "FIRST-LAST",
    )
    runtimes: Path | None = setting(None, "images for runtime versions, added to the shipped table", "FILE")
    pids_limit: Count = setting(
        4096,
        "limit of processes and threads for each replica, in a container or with a user of its own; default: "
        "%(default)s",
        "N",
    )
    install_timeout: Positive = setting(
        _INSTALL.seconds,
        "limit of the installation of one run's packages, which runs their setup.py; default: %(default)g",
        "SECONDS",
    )
    install_memory_gb: Positive = setting(
        _INSTALL.memory_bytes / 1e9, "its memory, in 10^9 bytes; default: %(default)g", "N"
    )
    install_cpus: Positive = setting(_INSTALL.cpus, "its CPUs, in containers; default: %(default)g", "N")
    capacity: Literal["fit", "strict"] = setting(
        "fit",
        "fit (the default): scale a gang that is larger than the machine down to it; strict: keep it queued",
        "MODE",
    )
    cpus: str = setting("", "CPUs for replicas, such as 0,2-5", "LIST")
    memory_gb: Positive | None = setting(None, "memory for replicas, in 10^9 bytes", "N")
    tpus: Annotated[tuple[Gpu, ...], BeforeValidator(parse_tpus)] = setting(
        (),
        "the TPU of this machine, such as 8xTPU_V3: 8 cores, which one replica of type cloud_tpu has",
        "COUNTxTYPE",
    )
    disk_gb: PositiveOrZero = setting(
        _INSTALL.disk_bytes / 1e9,
        "disk space, in 10^9 bytes, of a replica beside its job-dir, and of the installation of a run's packages; "
        "0: no limit; default: %(default)g",
        "N",
    )
    disk_reserve_gb: PositiveOrZero = setting(
        0.25,
        "start no run while the disk of --state-dir, of a --job-dir-root or of the container engine has less than N "
        "times 10^9 bytes left (of a small disk: a tenth of it), so that what runs can go on; default: %(default)g",
        "N",
    )
    replica_env: Many[Annotated[tuple[str, str], BeforeValidator(_assignment)]] = setting(
        (),
        "set this in every replica's environment, without VALUE as in the agent's own; may be repeated",
        "NAME[=VALUE]",
    )
    name: str = setting("", "the agent's display name; default: the host name", "NAME")
    python: Annotated[str, AfterValidator(_program)] = setting(
        sys.executable,
        "the interpreter whose packages every job can import; default: the one that runs the agent",
        "PROGRAM",
    )
    start_deadline: Positive | None = setting(
        None,
        "give a run back when its engine has given no new reason for so long why it has not started it; default: "
        f"{START_DEADLINE_S:g}, and never with --runtime slurm, whose queue is long",
        "SECONDS",
    )
    usage_every: PositiveOrZero = setting(
        USAGE_S,
        "interval between measurements of CPU, memory and GPU usage, 0 for none; default: %(default)g",
        "SECONDS",
    )
    parts: tuple[EngineSettings, ...] = ()

    def of(self, kind: type[_Part]) -> _Part:
        """The settings of an engine."""
        return next((part for part in self.parts if isinstance(part, kind)), None) or kind()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of --replica-env."""
        return dict(self.replica_env)

    @property
    def storage_emulator(self) -> str:
        return self.environment.get(EMULATOR, "")

    @property
    def disk_bytes(self) -> int:
        return int(self.disk_gb * 1e9)

    @property
    def disk_reserve_bytes(self) -> int:
        return int(self.disk_reserve_gb * 1e9)

    @property
    def certificates(self) -> Path | None:
        """--ca-file, or the variable that every client of a server has."""
        named = os.environ.get(CA_FILE_VARIABLE)
        return self.ca_file or (Path(named) if named else None)

    @property
    def install_limits(self) -> InstallLimits:
        return InstallLimits(
            seconds=self.install_timeout,
            memory_bytes=int(self.install_memory_gb * 1e9),
            cpus=self.install_cpus,
            disk_bytes=self.disk_bytes,
        )


@dataclass(frozen=True, slots=True)
class Command:
    """The task of one process of the agent: to serve, or one of the others, after which it exits."""

    name: Literal["serve", "stop-all", "doctor", "check"] = "serve"
    fix: bool = False
    grace_s: float = STOP_ALL_GRACE_S


def parse(
    argv: Sequence[str] | None, engines: Mapping[str, type[EngineSettings]]
) -> tuple[AgentSettings, Command]:
    """Parse the arguments. `engines`: the settings of each by name. Exits with status 2, as argparse does, for invalid
    ones."""
    parser = argparse.ArgumentParser(
        prog="python -m trainyard_agent",
        description="Runs the replicas that a Trainyard server assigns to this machine.",
        argument_default=argparse.SUPPRESS,
    )
    _add_flags(parser, AgentSettings, {"runtime": ["auto", *engines]})
    for kind in engines.values():
        if declared(kind):
            _add_flags(parser.add_argument_group(kind.title, kind.about), kind, {})
    _add_commands(parser)
    given = vars(parser.parse_args(argv))
    command = _command(given)
    try:
        parts = tuple(kind(**_given(given, kind)) for kind in engines.values())
        settings = AgentSettings(**_given(given, AgentSettings), parts=parts)
    except ValidationError as error:
        parser.error(_in_words(error))
    serves = command.name in ("serve", "check")
    if serves and not (settings.server and settings.token_file.name):
        parser.error("--server and --token-file are required, except with --stop-all and --doctor")
    for name, part in zip(engines, parts, strict=True):
        problem = part.problem(serves, settings.one_user) if settings.runtime == name else ""
        if problem:
            parser.error(problem)
    return settings, command


def declared(kind: type[Settings]) -> Iterator[tuple[str, FieldInfo]]:
    """The settings of this kind by name."""
    yield from ((name, field) for name, field in kind.model_fields.items() if field.description)


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def metavar_of(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    return str(extra["metavar"]) if isinstance(extra, dict) else ""


def _add_flags(
    parser: argparse._ActionsContainer, kind: type[Settings], choices: Mapping[str, list[str]]
) -> None:
    for name, field in declared(kind):
        how: dict[str, Any] = {"action": "store_true"}
        if metavar_of(field):
            allowed = choices.get(name) or _literals(field.annotation)
            shown = {"choices": allowed} if allowed else {"metavar": metavar_of(field)}
            how = {"action": "append" if _LISTED in field.metadata else "store", **shown}
        words = str(field.description)
        if "%(default)" in words:
            words = words % {"default": field.default}
        parser.add_argument(flag_of(name), dest=name, help=words, **how)


def _literals(annotation: object) -> list[str]:
    """The words of a Literal, or of an optional one; none for another type."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if get_origin(annotation) is Literal:
        return parts
    return _literals(parts[0]) if len(parts) == 1 else []


def _add_commands(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("commands", "Do this in place of running jobs, and exit.")
    group.add_argument("--stop-all", action="store_true", help="stop every replica under the state directory")
    group.add_argument(
        "--doctor", action="store_true", help="print the orphans of ended runs on this machine as JSON"
    )
    group.add_argument(
        "--check",
        action="store_true",
        help="check the options, the server's address and certificate, the token and the versions",
    )
    group.add_argument("--fix", action="store_true", help="--doctor: remove the orphans")
    group.add_argument(
        "--grace",
        type=_flag_type(_positive),
        metavar="SECONDS",
        help=f"--stop-all: time between SIGTERM and SIGKILL; default: {STOP_ALL_GRACE_S:g}",
    )


def _flag_type(check: Any) -> Any:
    def checked(text: str) -> object:
        try:
            return check(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _command(given: Mapping[str, Any]) -> Command:
    name: Literal["serve", "stop-all", "doctor", "check"] = "serve"
    if given.get("doctor"):
        name = "doctor"
    elif given.get("check"):
        name = "check"
    elif given.get("stop_all"):
        name = "stop-all"
    return Command(name, given.get("fix", False), given.get("grace", STOP_ALL_GRACE_S))


def _given(given: Mapping[str, Any], kind: type[Settings]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name in kind.model_fields}


def _in_words(error: ValidationError) -> str:
    """The first problem, in the words of argparse."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error", first["msg"])
    return f"argument {flag_of(str(first['loc'][0]))}: {cause}"
