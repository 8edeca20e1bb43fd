"""Server address and token: from flags, then the environment, then the local state directory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument

COMPLETION_VARIABLE = "_TRAINYARD_COMPLETE"
"""click's environment variable for shell completion."""

DEFAULT_PROJECT = "local"

RUNTIMES = ("auto", "process", "docker")
PULL_POLICIES = ("missing", "always", "never")
"""Values of --runtime and --pull of the local agent."""

WAIT_STATES = ("PREPARING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED")
"""Values of --for-state of `jobs wait`."""


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


@dataclass(frozen=True, slots=True)
class Server:
    """Address and token of a server. `local`: the one that `trainyard up` runs on this machine."""

    url: str
    token: str = field(repr=False)
    local: bool = False


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`$TRAINYARD_STATE_DIR`, `$XDG_STATE_HOME/trainyard` or `~/.local/state/trainyard`."""
    if directory := environment.get("TRAINYARD_STATE_DIR"):
        return Path(directory).expanduser().absolute()
    xdg = environment.get("XDG_STATE_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".local" / "state"
    return base / "trainyard"


def remote_server(target: Target, environment: Mapping[str, str] = os.environ) -> Server | None:
    """The server named by a flag or the environment, if any. Raises InvalidArgument for a bad URL or no token."""
    from_environment = "" if target.local else environment.get("TRAINYARD_SERVER", "")
    url = (target.server or from_environment).rstrip("/")
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(f"The server must be a URL such as https://host:8470, not {url!r}.")
    return Server(url, _token(target, environment, url))


def read_token(path: Path) -> str:
    """Read a token file. Raises InvalidArgument if it is unreadable or holds no token."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"The token file {path} cannot be read: {reason}.") from error
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidArgument(f"The token file {path} holds no token.")
    return token


def _token(target: Target, environment: Mapping[str, str], url: str) -> str:
    if target.token_file is not None:
        return read_token(target.token_file)
    if token := environment.get("TRAINYARD_TOKEN", "").strip():
        return token
    raise InvalidArgument(f"No token for the server {url}: give --token-file or set TRAINYARD_TOKEN.")
