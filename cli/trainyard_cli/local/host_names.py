"""Names of loopback: whether this machine resolves them, a marked block of its hosts file where it does not, and the
one for browsers."""

import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from trainyard_cli.settings import Server
from trainyard_protocol.net import loopback

DASHBOARD_HOST = "trainyard.localhost"
"""A name of loopback that browsers know by themselves. Services on other ports, under localhost and 127.0.0.1, get none
of its cookies."""

HOSTS_FILE = Path("/etc/hosts")

_HTTP_PORT = 80
_BEGIN_WORDS, _END = "# trainyard begin", "# trainyard end"
_BEGIN = f"{_BEGIN_WORDS}: `trainyard disconnect google` removes these lines"


def dashboard_url(server: Server) -> str:
    """The address of a server for browsers. On loopback it is a host name of its own where one user holds both
    addresses that the name has, else the address that the server is known to have: a browser sends a sign-in code and
    cookies to no other."""
    address = urlsplit(server.url)
    if address.scheme != "http" or not server.is_loopback:
        return server.url
    port = address.port or _HTTP_PORT
    if loopback.is_held_by_one_user(port):
        host = DASHBOARD_HOST
    elif address.hostname == "localhost":
        host = loopback.IPV4
    else:
        return server.url
    return address._replace(netloc=f"{host}:{port}" if address.port else host).geturl()


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
