"""Settings of the agent, each declared once. An engine declares its own in `engines/NAME/settings.py`.

`trainyard_protocol.settings` says where a value comes from. `make docs` writes
the reference from here.
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

from trainyard_agent.control.launch import THROUGH_STORAGE
from trainyard_agent.control.start_deadline import START_DEADLINE_S
from trainyard_agent.host import job_users
from trainyard_agent.host.accelerators import parse_tpus
from trainyard_agent.monitoring.usage_reporter import USAGE_S
from trainyard_agent.peers import reach as addresses
from trainyard_agent.peers.reach import Reach
from trainyard_agent.runtimes.base import PROCESSES
from trainyard_agent.runtimes.installing import InstallLimits
from trainyard_protocol import service_log
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.job.resources import Gpu
from trainyard_protocol.net.gcs import EMULATOR
from trainyard_protocol.net.trust import CA_FILE_VARIABLE
from trainyard_protocol.settings import SettingsReader, required, setting

PREFIX = "TRAINYARD_AGENT_"

AUTO = "auto"
"""The `--runtime` of every engine of the machine."""

_INSTALL = InstallLimits()
_Value = TypeVar("_Value")
_Part = TypeVar("_Part", bound="EngineSettings")


def checked(parse: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """A reader that says what is wrong, of a function that raises ValueError with it."""

    def read(text: str) -> _Value:
        try:
            return parse(text)
        except ValueError as error:
            raise InvalidArgument(f"{error}.") from error

    return read


def positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise InvalidArgument(f"must be a number above 0; this is {text!r}.")
    return number


def positive_or_zero(text: str) -> float:
    return 0.0 if text == "0" else positive(text)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InvalidArgument(f"must be a whole number above 0; this is {text!r}.")
    return int(text)


def url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme in ("http", "https") and parts.hostname and not parts.query:
        return text
    raise InvalidArgument(f"must look like https://trains.example.com:8470; this is {text!r}.")


def absolute(text: str) -> Path:
    return Path(text).absolute()


def _program(text: str) -> str:
    program = shutil.which(text)
    if program is None:
        raise InvalidArgument(f"is a program, and there is no program {text!r} on this machine.")
    return str(Path(program).absolute())


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name.isidentifier():
        raise InvalidArgument("must look like NAME=VALUE or NAME.")  # the rest may be a secret
    if name.startswith("TRAINYARD_"):
        raise InvalidArgument(f"has {name}: names that start with TRAINYARD_ are reserved.")
    if not equals and name not in os.environ:
        raise InvalidArgument(f"has {name}, and the agent's own environment has no such variable.")
    return name, value if equals else os.environ[name]


def _first_to_last(text: str, least: int, most: int) -> range | None:
    """The numbers of FIRST-LAST; None for a text that says none within the bounds."""
    first, _, last = text.partition("-")
    if first.isdecimal() and last.isdecimal() and least <= int(first) <= int(last) <= most:
        return range(int(first), int(last) + 1)
    return None


def _ports(text: str) -> range:
    if numbers := _first_to_last(text, 1024, 65535):
        return numbers
    raise InvalidArgument(f"must look like 30000-30999, from 1024 to 65535; this is {text!r}.")


def _group(text: str) -> str:
    if text.isprintable() and 0 < len(text) <= 64:
        return text
    raise InvalidArgument(f"must have 1 to 64 printable characters; this is {text!r}.")


def _user_ids(text: str) -> range:
    if numbers := _first_to_last(text, job_users.LEAST, 2**32 - 2):
        return numbers
    raise InvalidArgument(f"must look like 61184-65519, from {job_users.LEAST} on; this is {text!r}.")


@dataclass(frozen=True)
class EngineSettings:
    """Settings that one engine has, and what must be known of it before it is loaded.

    `title` is the heading of its flags. `spans_hosts`: it goes on without its agent, and is an agent's only one; else
    it is one of those of a machine, which share its capacity. `has_pods`: mounts are volumes of a cluster.
    `start_deadline_s`: how long it may give the same reasons for not starting a run, unless --start-deadline is given.
    `directories`: those of a machine's state directory that it alone has.
    """

    title: ClassVar[str] = ""
    spans_hosts: ClassVar[bool] = False
    has_pods: ClassVar[bool] = False
    start_deadline_s: ClassVar[float] = START_DEADLINE_S
    directories: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def private_files(cls) -> tuple[Path, ...]:
        """Files of the engine that give its rights to whoever can open them."""
        return ()

    @classmethod
    def may_have_runs(cls, state_dir: Path) -> bool:
        """Whether runs of a machine's engine may be there, or what was prepared for them."""
        return any(path for name in cls.directories for path in (state_dir / name).glob("[!.]*"))

    def problem(self, serves: bool, one_user: bool) -> str:  # noqa: ARG002 - most have none
        """The reason why an agent of this engine cannot have these settings; "" if it can. `serves`: it is to run
        jobs."""
        return ""


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """Settings that every engine has."""

    server: str = setting("", "the server's address, such as http://127.0.0.1:8470", metavar="URL")
    token_file: Path | None = setting(None, "file with the agent's token", metavar="FILE")
    ca_file: Path | None = setting(
        None,
        "the CA certificates (PEM) for an https:// server",
        metavar="FILE",
        default_text=f"${CA_FILE_VARIABLE}, else those of the operating system",
    )
    tracking_url: str = setting(
        "",
        "the server's address for replicas in containers, for MLflow's tracking; processes have that of --server. "
        f"`{THROUGH_STORAGE}`: through the proxy of gs:// in their STORAGE_EMULATOR_HOST",
        metavar="URL",
        default_text="none",
    )
    log_format: str = setting(
        "text", "lines for people, or JSON objects for a log collector", choices=service_log.FORMATS
    )
    state_dir: Path = required("directory for the agent's state", metavar="DIR")
    runtime: str = setting(
        AUTO,
        "how replicas of new runs may run: the name of an engine; or auto: jobs with an image in containers, while an "
        "engine answers, and package jobs as processes where they may (but see packageJobs and versions of --runtimes)",
        metavar="RUNTIME",
    )
    one_user: bool = setting(
        False,
        "all jobs are this user's own: package jobs may run as processes, with all rights of this user; without it "
        "processes need an agent that is root, and each run has a user id of its own",
    )
    job_uids: range = setting(
        job_users.DEFAULT,
        "user ids for the processes of jobs, which nothing else on the machine has, nor another agent",
        metavar="FIRST-LAST",
        read=_user_ids,
        default_text=f"{job_users.DEFAULT[0]}-{job_users.DEFAULT[-1]}",
    )
    runtimes: Path | None = setting(None, "images for runtime versions, added to the shipped table", metavar="FILE")
    mounts: Path | None = setting(
        None, "directories that jobs may mount by name, and where the caches of projects are", metavar="FILE"
    )
    pids_limit: int = setting(
        PROCESSES,
        "limit of processes and threads for each replica, in a container or with a user of its own",
        metavar="N",
        read=count,
    )
    install_timeout: float = setting(
        _INSTALL.seconds,
        "limit of the installation of one run's packages, which runs their setup.py",
        metavar="SECONDS",
        read=positive,
    )
    install_memory_gb: float = setting(
        _INSTALL.memory_bytes / 1e9, "its memory, in 10^9 bytes", metavar="N", read=positive
    )
    install_cpus: float = setting(_INSTALL.cpus, "its CPUs, in containers", metavar="N", read=positive)
    capacity: Literal["fit", "strict"] = setting(
        "fit",
        "fit: scale a gang that is larger than the machine down to it; strict: keep it queued",
        read=str,
        choices=("fit", "strict"),
    )
    cpus: str = setting("", "CPUs for replicas, such as 0,2-5", metavar="LIST", default_text="all")
    memory_gb: float | None = setting(
        None, "memory for replicas, in 10^9 bytes", metavar="N", read=positive, default_text="all"
    )
    tpus: Sequence[Gpu] = setting(
        (),
        "the TPU of this machine, such as 8xTPU_V3: 8 cores, which one replica of type cloud_tpu or cloud-tpu has",
        metavar="COUNTxTYPE",
        read=checked(parse_tpus),
    )
    disk_gb: float = setting(
        _INSTALL.disk_bytes / 1e9,
        "disk space, in 10^9 bytes, of a replica beside its job-dir, and of the installation of a run's packages; "
        "0: no limit",
        metavar="N",
        read=positive_or_zero,
    )
    disk_reserve_gb: float = setting(
        0.25,
        "start no run while the disk of --state-dir, of a --job-dir-root or of the container engine has less than N "
        "times 10^9 bytes left (of a small disk: a tenth of it), so that what runs can go on",
        metavar="N",
        read=positive_or_zero,
    )
    replica_env: tuple[tuple[str, str], ...] = setting(
        (),
        "set this in every replica's environment, without VALUE as in the agent's own",
        metavar="NAME[=VALUE]",
        read=_assignment,
        is_secret=True,
    )
    address: str = setting(
        "",
        "the address of this machine at which the replicas of a gang over several agents reach those here",
        metavar="IP",
        read=checked(addresses.own_address),
        default_text="that of the interface towards the server; none towards a server on this machine",
    )
    ports: range = setting(
        addresses.DEFAULT_PORTS,
        "the ports at which those here listen, which the other machines of the group must reach",
        metavar="FIRST-LAST",
        read=_ports,
        default_text=f"{addresses.DEFAULT_PORTS[0]}-{addresses.DEFAULT_PORTS[-1]}",
    )
    group: str = setting(
        "default",
        "the agents of one group reach each other: a gang that no agent holds alone gets several of one group",
        metavar="NAME",
        read=_group,
    )
    name: str = setting("", "the agent's display name", metavar="NAME", default_text="the host name")
    python: str = setting(
        sys.executable,
        "the interpreter whose packages every job can import",
        metavar="PROGRAM",
        read=_program,
        default_text="the one that runs the agent",
    )
    start_deadline: float | None = setting(
        None,
        "give a run back if its engine has not started it for this long without a new reason, or a registry, "
        "a package index or gs:// has not answered for this long",
        metavar="SECONDS",
        read=positive,
        default_text=f"{START_DEADLINE_S:g}, and never for the queue of --runtime slurm",
    )
    usage_every: float = setting(
        USAGE_S,
        "interval between measurements of CPU, memory and GPU usage, 0 for none",
        metavar="SECONDS",
        read=positive_or_zero,
    )
    parts: tuple[EngineSettings, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "state_dir", self.state_dir.absolute())

    def of(self, kind: type[_Part]) -> _Part:
        """The settings of an engine."""
        return next((part for part in self.parts if isinstance(part, kind)), None) or kind()

    @cached_property
    def reach(self) -> Reach:
        """The address and the ports at which other machines reach the replicas of this one."""
        return Reach(self.address or addresses.address_towards(self.server), self.ports)

    @cached_property
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
            patience_s=self.start_deadline or START_DEADLINE_S,
        )


@dataclass(frozen=True)
class Command:
    """The task of one process of the agent: to run jobs, or one of these, after which it exits."""

    stop_all: bool = setting(False, "stop every replica under the state directory")
    doctor: bool = setting(False, "print problems of the engines, and orphans of runs that are gone, as JSON")
    check: bool = setting(False, "check the options, the server's address and certificate, the token and the versions")
    grace: float = setting(10.0, "with --stop-all: time between SIGTERM and SIGKILL", metavar="SECONDS", read=positive)


def parse(argv: Sequence[str] | None, engines: Mapping[str, type[EngineSettings]]) -> tuple[AgentSettings, Command]:
    """Parse the arguments. `engines`: the settings of each by name. Exits with status 2, as argparse does, for invalid
    ones."""
    titles: dict[type, str] = {AgentSettings: "", Command: "commands\nDo this in place of running jobs, and exit."}
    titles |= {kind: kind.title for kind in engines.values()}
    reader = SettingsReader(
        "python -m trainyard_agent",
        "Runs the replicas that a Trainyard server assigns to this machine.",
        PREFIX,
        titles,
    )
    try:
        given = reader.read(argv, os.environ)
        command = Command(**given[Command])
        parts = {name: kind(**given[kind]) for name, kind in engines.items()}
        settings = AgentSettings(**given[AgentSettings], parts=tuple(parts.values()))
        _check(settings, command, parts)
    except InvalidArgument as error:
        reader.parser().error(error.message)
    return settings, command


def _check(settings: AgentSettings, command: Command, parts: Mapping[str, EngineSettings]) -> None:
    """Raises InvalidArgument for settings that do not go together."""
    serves = not (command.stop_all or command.doctor)
    runtimes = (AUTO, *parts)
    if settings.runtime not in runtimes:
        raise InvalidArgument(f"--runtime is one of {', '.join(runtimes)}; this is {settings.runtime!r}.")
    if serves and not (settings.server and settings.token_file):
        raise InvalidArgument("--server and --token-file are required, except with --stop-all and --doctor")
    named = parts.get(settings.runtime)
    chosen = [named] if named is not None else [part for part in parts.values() if not part.spans_hosts]
    for part in chosen:
        if problem := part.problem(serves, settings.one_user):
            raise InvalidArgument(problem)
