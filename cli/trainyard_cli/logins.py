"""Saved logins: the servers that `trainyard login` was told of, each with its token. One of them is the current one.

The file is `logins.json` in the configuration directory, readable only by its owner.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard_protocol.errors import FailedPrecondition


def config_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """`$XDG_CONFIG_HOME/trainyard` or `~/.config/trainyard`."""
    xdg = environment.get("XDG_CONFIG_HOME")
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".config"
    return base / "trainyard"


@dataclass(frozen=True, slots=True)
class Logins:
    """The saved logins. `current` is the URL of the server that commands use, "" for none. `ca_files` has the CA file
    of each server that needs one."""

    current: str = ""
    tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_files: Mapping[str, str] = field(default_factory=dict)

    def with_login(self, url: str, token: str, ca_file: Path | None = None) -> "Logins":
        others = self.without(url)
        ca_files = {**others.ca_files, url: str(ca_file)} if ca_file is not None else others.ca_files
        return Logins(url, {**others.tokens, url: token}, ca_files)

    def without(self, url: str) -> "Logins":
        tokens, ca_files = (
            {address: value for address, value in saved.items() if address != url}
            for saved in (self.tokens, self.ca_files)
        )
        return Logins("" if self.current == url else self.current, tokens, ca_files)

    def ca_file(self, url: str) -> Path | None:
        return Path(self.ca_files[url]) if url in self.ca_files else None


def read_logins(environment: Mapping[str, str] = os.environ) -> Logins:
    """The saved logins; none without the file.

    Raises FailedPrecondition for a file that is damaged, or that others may read.
    """
    path = _path(environment)
    try:
        with path.open(encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = json.load(file)
    except FileNotFoundError:
        return Logins()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise FailedPrecondition(
            f"The saved logins in {path} cannot be read: {reason}. Remove the file and run `trainyard login` again."
        ) from error
    if mode & 0o077:
        raise FailedPrecondition(
            f"The saved logins in {path} may be read by others (mode {mode:04o}). Revoke the token in it if they are "
            f"not to have it, then run: chmod 600 {path}"
        )
    return _parsed(data)


def save_logins(logins: Logins, environment: Mapping[str, str] = os.environ) -> Path:
    """Replace the file and return its path. Raises FailedPrecondition."""
    import tempfile  # too slow for shell completion, which reads logins

    path = _path(environment)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            data = {"current": logins.current, "tokens": dict(logins.tokens), "ca_files": dict(logins.ca_files)}
            json.dump(data, file, indent=2)
        Path(draft).replace(path)
    except OSError as error:
        raise FailedPrecondition(f"The login cannot be saved in {path}: {error.strerror}.") from error
    return path


def _path(environment: Mapping[str, str]) -> Path:
    return config_dir(environment) / "logins.json"


def _parsed(data: Any) -> Logins:
    """The logins of a file; what has another form is left out."""
    if not isinstance(data, dict):
        return Logins()
    current, tokens, ca_files = data.get("current"), _texts(data.get("tokens")), _texts(data.get("ca_files"))
    return Logins(current if isinstance(current, str) and current in tokens else "", tokens, ca_files)


def _texts(data: Any) -> dict[str, str]:
    entries = data if isinstance(data, dict) else {}
    return {url: text for url, text in entries.items() if isinstance(text, str) and text}
