"""Names of loopback: whether this machine resolves them, and a marked block of its hosts file where it does not."""

import shlex
import socket
from collections.abc import Sequence
from pathlib import Path

from trainyard_protocol.net import loopback

HOSTS_FILE = Path("/etc/hosts")

_BEGIN_WORDS, _END = "# trainyard begin", "# trainyard end"
_BEGIN = f"{_BEGIN_WORDS}: `trainyard disconnect google` removes these lines"


def unresolved(names: Sequence[str]) -> list[str]:
    """The names that do not mean loopback here. systemd's resolver knows all below localhost by itself."""
    return [name for name in names if not _is_loopback(name)]


def unknown(names: Sequence[str]) -> list[str]:
    """The names that have no address here, whichever."""
    return [name for name in names if not _addresses(name)]


def command_to_add(names: Sequence[str], file: Path = HOSTS_FILE) -> str:
    """The shell command by which root adds the block."""
    lines = " ".join(map(shlex.quote, _block(names)))
    return f"printf '%s\\n' {lines} | sudo tee -a {file} > /dev/null"


def command_to_remove(file: Path = HOSTS_FILE) -> str:
    """The shell command by which root removes the block."""
    return f"sudo sed -i '/^{_BEGIN_WORDS}/,/^{_END}$/d' {file}"


def with_block(text: str, names: Sequence[str]) -> str:
    """The text of a hosts file with the names, in place of an earlier block. Pure."""
    rest = without_block(text)
    return rest + ("" if rest.endswith("\n") or not rest else "\n") + "\n".join([*_block(names), ""])


def without_block(text: str) -> str:
    """The text of a hosts file without our block; one whose end is missing is left alone. Pure."""
    before, begun, rest = text.partition(f"{_BEGIN}\n")
    _, ended, after = rest.partition(f"{_END}\n")
    return before + after if begun and ended else text


def rewrite(text: str, file: Path = HOSTS_FILE) -> None:
    """Write the file in place: in a container it is a mount, which cannot be replaced. Raises OSError."""
    with file.open("r+", encoding="utf-8") as opened:
        opened.write(text)
        opened.truncate()


def _block(names: Sequence[str]) -> list[str]:
    return [_BEGIN, f"{loopback.IPV4} {' '.join(names)}", _END]


def _is_loopback(name: str) -> bool:
    addresses = _addresses(name, socket.AF_INET)
    return bool(addresses) and all(address.startswith("127.") for address in addresses)


def _addresses(name: str, family: int = socket.AF_UNSPEC) -> list[str]:
    try:
        return [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)]
    except OSError:
        return []
