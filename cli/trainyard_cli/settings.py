"""Server address and token: from flags, then the environment, then the saved login, then the local state directory."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainyard_cli.logins import Logins, read_logins
from trainyard_protocol.errors import InvalidArgument
from trainyard_protocol.net.private_files import read_token_file

COMPLETION_VARIABLE = "_TRAINYARD_COMPLETE"
"""click's environment variable for shell completion."""

DEFAULT_PROJECT = "local"

PERSON_ROLES = ("viewer", "submitter", "admin")
"""Values of --role of `projects add-member`."""

WAIT_STATES = ("PREPARING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
"""Values of --for-state of `jobs wait`."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Target:
    """Which server a command's flags select. Empty means: not given.

    `local`: --state-dir was given, so the local service is used whatever the environment says.
    """

    state_dir: Path
    project: str = DEFAULT_PROJECT
    server: str = ""
    token_file: Path | None = None
    local: bool = False
    ca_file: Path | None = None

    @property
    def flags(self) -> str:
        """The flags that select the same server and project in another command, each with a space before it."""
        given = {
            "--server": self.server,
            "--token-file": self.token_file,
            "--ca-file": self.ca_file,
            "--project": "" if self.project == default_project() else self.project,
            "--state-dir": self.state_dir if self.local else None,
        }
        return "".join(f" {name} {shlex.quote(str(value))}" for name, value in given.items() if value)


@dataclass(frozen=True, slots=True)
class Server:
    """Address and token of a server. `local`: the one that `trainyard up` runs on this machine. `ca_file`: the
    authorities that may sign its certificate; None: those of the operating system."""

    url: str
    token: str = field(repr=False)
    local: bool = False
    ca_file: Path | None = None

    @property
    def is_loopback(self) -> bool:
        return urlsplit(self.url).hostname in _LOOPBACK


def default_project(environment: Mapping[str, str] = os.environ) -> str:
    """`$TRAINYARD_PROJECT` or `local`."""
    return environment.get("TRAINYARD_PROJECT") or DEFAULT_PROJECT


def chosen_target(flags: Mapping[str, Any]) -> Target:
    """The target of a command's flags: --server, --token-file, --ca-file, --project and --state-dir."""
    return Target(
        state_dir=flags.get("state_dir") or default_state_dir(),
        project=flags.get("project") or default_project(),
        server=flags.get("server") or "",
        token_file=flags.get("token_file"),
        local=flags.get("state_dir") is not None,
        ca_file=flags.get("ca_file"),
    )


def checked_project(text: str, origin: str = "--project") -> str:
    """The project's id, by the server's rule. Raises InvalidArgument, which names the variable if it has the id."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}", text):
        return text
    source = "$TRAINYARD_PROJECT" if text == os.environ.get("TRAINYARD_PROJECT") else origin
    raise InvalidArgument(
        f"{source}: {text!r} is not a project id: it has 1 to 128 letters, digits and _ . : -, and begins with a "
        "letter or a digit."
    )


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`$TRAINYARD_STATE_DIR`, `$XDG_STATE_HOME/trainyard` or `~/.local/state/trainyard`."""
    if directory := environment.get("TRAINYARD_STATE_DIR"):
        return Path(directory).expanduser().absolute()
    xdg = environment.get("XDG_STATE_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".local" / "state"
    return base / "trainyard"


def remote_server(target: Target, environment: Mapping[str, str] = os.environ) -> Server | None:
    """The server named by a flag, the environment or the saved login, if any. Raises InvalidArgument for a bad URL or
    no token, FailedPrecondition for unreadable logins."""
    from_environment = "" if target.local else environment.get("TRAINYARD_SERVER", "")
    url = server_url(target.server or from_environment)
    if not url and (target.local or "TRAINYARD_STATE_DIR" in environment):
        return None
    logins = read_logins(environment)
    url = url or logins.current
    if not url:
        return None
    token = _token(target, environment, url, logins)
    return Server(url, token, ca_file=chosen_ca_file(target.ca_file, environment) or logins.ca_file(url))


def chosen_ca_file(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The CA file of the flag, else of the environment; None for neither."""
    if given is not None:
        return given.expanduser().absolute()
    named = environment.get("TRAINYARD_CA_FILE")
    return Path(named).expanduser().absolute() if named else None


def server_url(text: str) -> str:
    """The address without its last slash; "" for none. Raises InvalidArgument for what is no URL."""
    url = text.strip().rstrip("/")
    if url and not (url.startswith(("http://", "https://")) and url.isascii() and url.isprintable()):
        raise InvalidArgument(f"The server must be a URL such as https://host:8470, not {url!r}.")
    return url


def encrypted_url(text: str, whose: str) -> str:
    """The address of a server that is to be sent a new token. Raises InvalidArgument for no URL, and for plain HTTP to
    another machine."""
    url = server_url(text)
    if not url:
        raise InvalidArgument("The server must be a URL such as https://host:8470.")
    if url.startswith("http://") and not Server(url, "").is_loopback:
        raise InvalidArgument(f"{url} would send {whose} token in plain text: the server needs https://.")
    return url


def read_token(path: Path) -> str:
    """Read a token file. Raises InvalidArgument if it is unreadable or holds no token."""
    return checked_token(read_token_file(path).token, f"the token file {path}")


def checked_token(text: str, source: str) -> str:
    """The token without the space around it. Raises InvalidArgument for what cannot be one."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidArgument(f"{source[0].upper()}{source[1:]} holds no token.")
    return token


def _token(target: Target, environment: Mapping[str, str], url: str, logins: Logins) -> str:
    if target.token_file is not None:
        return read_token(target.token_file)
    if token := environment.get("TRAINYARD_TOKEN", "").strip():
        return token
    if token := logins.tokens.get(url, ""):
        return token
    raise InvalidArgument(
        f"No token for the server {url}: run `trainyard login {url}`, give --token-file, or set TRAINYARD_TOKEN."
    )
