"""Options of the local service, each declared once: its flag of `trainyard up`, what may be stored, and whose command
line gets it."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

import click

ProcessName = Literal["server", "storage", "agent"]


class Duration(click.ParamType[float]):
    """Parameter type of a duration such as 10m; the value is in seconds."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from trainyard_protocol.lines.time_parsing import parse_duration

        try:
            return parse_duration(str(value)).total_seconds()
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class KeepJobs(Duration):
    """Parameter type of --keep-jobs: a duration above 0, or `all`; the value is the text."""

    name = "DURATION|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value != "all" and not super().convert(value, param, ctx):
            self.fail("must be above 0: a job that ends must be there to be read.", param, ctx)
        return value


class ContainerUser(click.ParamType[str]):
    """Parameter type of --container-user."""

    name = "image|UID[:GID]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not re.fullmatch(r"auto|image|[1-9][0-9]{0,9}(:[0-9]{1,10})?", text):
            self.fail(f"{text!r} is neither image nor ids such as 1000:1000, which are not root's.", param, ctx)
        return text


class LocalPath(click.Path):
    """Parameter type of a path; the value is absolute, as text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(Path(str(super().convert(value, param, ctx))).absolute())


class FilePath(LocalPath):
    """Parameter type of a file that exists."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False)


class ListenAddress(click.ParamType[str]):
    """Parameter type of --listen; the value of `none` is "". `up` checks whether it is this machine's."""

    name = "ADDRESS|none"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lower()
        if text in ("", "none"):
            return ""
        if not re.fullmatch(r"[a-z0-9_.-]{1,253}|[0-9a-f:.]{2,45}", text, re.ASCII):
            self.fail(
                f"{text!r} is neither an address such as 10.0.0.7 nor a host name, without scheme and port.", param, ctx
            )
        return text


class SharedDirectory(LocalPath):
    """Parameter type of --shared-job-dirs, a directory that exists; the value of `none` is ""."""

    def __init__(self) -> None:
        super().__init__(exists=True, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return "" if str(value) in ("", "none") else super().convert(value, param, ctx)


def _option(
    default: Any,
    kind: click.ParamType[Any] | None,
    help_: str,
    process: ProcessName | None = None,
    metavar: str | None = None,
) -> Any:
    """A field with a flag. `process`: the one whose command line gets it; None: which of them, `commands` decides."""
    shown = {"type": kind, "help": help_, "metavar": metavar}
    return field(default=default, metadata={"flag": shown, "process": process})


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the last `up`. A port is 0 until it is chosen, `google_port` while Google's clients are not
    connected."""

    server_port: int = 0
    storage_port: int = 0
    capacity: str = _option(
        "fit",
        click.Choice(["fit", "strict"]),
        "For a job larger than this machine: fit scales it down, strict leaves it queued.  [default: fit]",
        "agent",
    )
    cpus: str = _option("", None, "CPUs for jobs, such as 0,2-5.  [default: all]", "agent", "0,1,...")
    memory_gb: float | None = _option(
        None, click.FloatRange(min=0, min_open=True), "Memory for jobs, in GB.  [default: this machine's]", "agent"
    )
    machine_types: str = _option("", FilePath(), "File with your own machine types.", "server")
    server_settings: str = _option(
        "",
        FilePath(),
        "TOML file with further settings of the server, such as a mail server (docs/reference/server-settings.md).",
    )
    quotas: str = _option("", FilePath(), "File with the quota of each project.")
    runtime: str = _option(
        "auto",
        click.Choice(["auto", "process", "docker"]),
        "Narrow how jobs run. auto: jobs with an image in containers, while a Docker engine answers, and package jobs "
        "as processes. docker: all in containers. process: no containers.  [default: auto]",
        "agent",
    )
    runtimes: str = _option("", FilePath(), "File with your own runtime versions and their images.", "agent")
    mounts: str = _option(
        "", FilePath(), "File with directories that jobs may mount by name, and where caches are.", "agent"
    )
    keep_jobs: str = _option(
        "all", KeepJobs(), "Delete jobs and their logs this long after they end, such as 90d.  [default: all]", "server"
    )
    pull: str = _option(
        "missing", click.Choice(["missing", "always", "never"]), "When to pull a job's image.  [default: missing]"
    )
    container_user: str = _option(
        "auto",
        ContainerUser(),
        "User of containers. image: the image's own user, even root. UID:GID: these ids.  [default: you, not "
        "root; where you are root, an unprivileged user]",
    )
    python: str = _option(
        "",
        FilePath(),
        "Python interpreter whose packages every job's processes can import, such as an environment with TensorFlow.  "
        "[default: the service's own]",
        "agent",
    )
    listen: str = _option(
        "",
        ListenAddress(),
        "Let other machines join: listen there too, with HTTPS. An address of this machine, or a host name that leads "
        "to one.  [default: none, this machine only]",
    )
    shared_job_dirs: str = _option(
        "",
        SharedDirectory(),
        "With --listen: a directory that every machine has at the same path, as on NFS, for jobs without a job-dir.  "
        "[default: none; gs:// of the service]",
        metavar="DIRECTORY|none",
    )
    google_port: int = 0

    @classmethod
    def stored(cls, data: Any) -> Self:
        """The options of a file; a damaged value becomes the default."""
        if not isinstance(data, dict):
            return cls()
        named = {option.name: option for option in fields(cls) if option.name in data}
        return cls(**{name: data[name] for name, option in named.items() if _is_value(option, data[name])})

    def flags(self, process: ProcessName) -> Iterator[str]:
        """The flags of a process, for what is not the default."""
        for option in fields(self):
            value = getattr(self, option.name)
            if option.metadata.get("process") == process and value != option.default:
                yield from (f"--{flag_name(option)}", f"{value:g}" if isinstance(value, float | int) else value)


def up_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that adds a flag for each option that has one. The command receives those that were given."""
    flags = [option for option in fields(Options) if "flag" in option.metadata]

    def wrapped(**parameters: Any) -> Any:
        given = {option.name: parameters.pop(option.name) for option in flags}
        changes = {name: value for name, value in given.items() if value is not None}
        return function(changes=changes, **parameters)

    decorated: Callable[..., Any] = wrapped
    decorated.__doc__ = function.__doc__
    for option in reversed(flags):
        decorated = click.option(f"--{flag_name(option)}", **option.metadata["flag"])(decorated)
    return decorated


def flag_name(option: "Field[Any]") -> str:
    return option.name.replace("_", "-")


def _is_value(option: "Field[Any]", value: Any) -> bool:
    """Whether a stored value is one of the option. A file may have been removed since."""
    flag: Mapping[str, Any] = option.metadata.get("flag", {})
    if not flag:
        return type(value) is int and 0 <= value < 2**16
    if not isinstance(option.default, str):
        is_number = type(value) in (int, float) and value < float("inf")
        return value == option.default or (is_number and _converts(flag["type"], value))
    if not isinstance(value, str):
        return False
    return flag["type"] is None or isinstance(flag["type"], LocalPath) or _converts(flag["type"], value)


def _converts(kind: click.ParamType[Any], value: Any) -> bool:
    try:
        kind.convert(value, None, None)
    except click.BadParameter:
        return False
    return True
