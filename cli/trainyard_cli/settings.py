"""Where the server is, and the token for it: flags first, then the environment, then the local state directory."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard_protocol.errors import InvalidArgument

DEFAULT_PROJECT = "local"

RUNTIMES = ("auto", "process", "docker")
PULL_POLICIES = ("missing", "always", "never")
"""What the local agent may be told with --runtime and --pull."""


@dataclass(frozen=True, slots=True)
class Where:
    """What the flags of one command say. Empty means: not given.

    `local`: a flag named the state directory, so the local service is meant whatever the environment says.
    """

    state_dir: Path
    project: str = DEFAULT_PROJECT
    server: str = ""
    token_file: Path | None = None
    local: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """A server to talk to. `local`: it is the one that `trainyard up` runs on this machine."""

    url: str
    token: str = field(repr=False)
    local: bool = False


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`$TRAINYARD_STATE_DIR`, `$XDG_STATE_HOME/trainyard` or `~/.local/state/trainyard`."""
    if named := environment.get("TRAINYARD_STATE_DIR"):
        return Path(named).expanduser().absolute()
    xdg = environment.get("XDG_STATE_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".local" / "state"
    return base / "trainyard"


def remote_server(where: Where, environment: Mapping[str, str] = os.environ) -> Server | None:
    """The server that a flag or the environment names; None where neither does.

    Raises InvalidArgument when it is no URL, or when no token comes with it.
    """
    from_environment = "" if where.local else environment.get("TRAINYARD_SERVER", "")
    url = (where.server or from_environment).rstrip("/")
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise InvalidArgument(f"The server must be a URL such as https://host:8470; this is {url!r}.")
    return Server(url, _token(where, environment, url))


def read_token(path: Path) -> str:
    """The token in a file. Raises InvalidArgument when the file cannot be read or is empty."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidArgument(f"The token file {path} cannot be read: {reason}.") from error
    if not token or not token.isascii() or not token.isprintable():
        raise InvalidArgument(f"The token file {path} holds no token.")
    return token


def _token(where: Where, environment: Mapping[str, str], url: str) -> str:
    if where.token_file is not None:
        return read_token(where.token_file)
    if token := environment.get("TRAINYARD_TOKEN", "").strip():
        return token
    raise InvalidArgument(
        f"There is no token for the server {url}: give --token-file, or set TRAINYARD_TOKEN."
    )
