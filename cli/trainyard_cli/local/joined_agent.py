"""The agent of another machine's server on this machine: its directory, its command, and its systemd unit."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import NoReturn

from pydantic import TypeAdapter, ValidationError

from trainyard_cli.settings import default_state_dir
from trainyard_protocol.answers.health import Finding
from trainyard_protocol.errors import FailedPrecondition, InvalidArgument
from trainyard_protocol.net.private_files import make_private

UNIT = "trainyard-agent"
STORAGE_UNIT = "trainyard-storage"

_OF_ROOT = Path("/var/lib/trainyard-agent")
_SYSTEM_UNITS = Path("/etc/systemd/system")


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit that was written. `commands` start it."""

    path: Path
    commands: Sequence[str]


@dataclass(frozen=True, slots=True)
class JoinedAgent:
    """An agent of the server at `url`. `options` are those of `python -m trainyard_agent`."""

    url: str
    directory: Path
    ca_file: Path | None
    options: tuple[str, ...]
    given_token_file: Path | None = field(default=None)

    @property
    def token_file(self) -> Path:
        return self.given_token_file or self.directory / "token"

    def with_token_file(self, path: Path) -> "JoinedAgent":
        return replace(self, given_token_file=path.expanduser().absolute())

    @property
    def has_token(self) -> bool:
        """Whether the directory has the token of a join to the same server before."""
        try:
            return (self.directory / "server").read_text(encoding="utf-8").strip() == self.url
        except OSError:
            return False

    def save_token(self, token: str) -> None:
        """Store the token for the next time. Raises FailedPrecondition."""
        path = self.directory / "token"
        try:
            make_private(self.directory, may_pass=True)
            path.touch(mode=0o600)
            path.chmod(0o600)
            path.write_text(f"{token}\n", encoding="ascii")
            (self.directory / "server").write_text(f"{self.url}\n", encoding="utf-8")
        except OSError as error:
            raise FailedPrecondition(f"The token cannot be saved in {path}: {error.strerror}.") from error

    def check(self) -> int:
        """Check the options, the server, the token and the versions. Returns the exit code; what is wrong is on
        stderr. Raises FailedPrecondition without the packages of an agent."""
        if importlib.util.find_spec("docker") is None:
            raise FailedPrecondition(
                f"This Python ({sys.executable}) has no worker agent: pip install 'trainyard[agent]'."
            )
        return subprocess.run([*self._command(), "--check"], check=False).returncode

    def examine(self) -> tuple[Finding, ...]:
        """Findings of the agent's doctor. Raises FailedPrecondition."""
        command = [sys.executable, "-P", "-m", "trainyard_agent", "--state-dir", str(self.directory.absolute())]
        done = subprocess.run([*command, "--doctor", *self.options], capture_output=True, text=True, check=False)
        try:
            return TypeAdapter(tuple[Finding, ...]).validate_json(done.stdout)
        except ValidationError as error:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise FailedPrecondition(last.removeprefix("trainyard_agent: ")) from error

    def become(self) -> NoReturn:
        """Replace this process by the agent."""
        command = self._command()
        os.execv(command[0], command)  # noqa: S606 - no shell

    def install(self) -> Unit:
        """Write the unit. Raises FailedPrecondition, InvalidArgument."""
        return write_unit(UNIT, f"worker agent of {self.url}", self._command())

    def _command(self) -> list[str]:
        ca_file = ["--ca-file", str(self.ca_file)] if self.ca_file is not None else []
        return [
            *(sys.executable, "-P", "-m", "trainyard_agent", "--server", self.url),
            *("--token-file", str(self.token_file), "--state-dir", str(self.directory.absolute())),
            *ca_file,
            *self.options,
        ]


def write_unit(name: str, description: str, command: Sequence[str]) -> Unit:
    """Write a systemd unit, of the system for root, else of the user. Raises FailedPrecondition, InvalidArgument."""
    root = os.geteuid() == 0
    directory = _SYSTEM_UNITS if root else _user_units()
    path = directory / f"{name}.service"
    template = Template(files("trainyard_cli.local").joinpath("agent.service").read_text(encoding="utf-8"))
    text = template.substitute(
        description=description.replace("%", "%%"),
        command=" ".join(map(_quoted, command)),
        target="multi-user.target" if root else "default.target",
    )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FailedPrecondition(f"The unit {path} cannot be written: {error.strerror}.") from error
    user = "" if root else " --user"
    commands = [f"systemctl{user} daemon-reload", f"systemctl{user} enable --now {name}"]
    return Unit(path, commands if root else [*commands, "loginctl enable-linger"])


def default_directory() -> Path:
    """The agent's directory: for root one that users of jobs can pass through, else in the user's state directory."""
    return _OF_ROOT if os.geteuid() == 0 else default_state_dir() / "joined"


def _user_units() -> Path:
    xdg = os.environ.get("XDG_CONFIG_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".config"
    return base / "systemd" / "user"


def _quoted(word: str) -> str:
    """The word as systemd reads it back. Raises InvalidArgument for one that no unit can have."""
    if not word.isprintable():
        raise InvalidArgument(f"{word!r} cannot be in a systemd unit.")
    plain = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{plain}"'
