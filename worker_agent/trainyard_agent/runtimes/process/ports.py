"""Free ports for the replicas of a run."""

import secrets
import socket
from collections.abc import Set
from pathlib import Path

_LOWEST = 20_000
_HIGHEST = 65_535
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class NoFreePort(Exception):
    """The whole range is taken."""


def free_ports(count: int, taken: Set[int]) -> list[int]:
    """Ports that nobody listens on and that are not among `taken`; all different, at random.

    They lie below the range from which the kernel serves outgoing connections, so that none of these takes
    a port between now and the moment when the replica listens on it.
    """
    candidates = [port for port in _range() if port not in taken]
    found: list[int] = []
    while len(found) < count:
        if not candidates:
            raise NoFreePort(f"no {count} free ports between {_range().start} and {_range().stop - 1}")
        port = candidates.pop(secrets.randbelow(len(candidates)))
        if _is_free(port):
            found.append(port)
    return found


def _range() -> range:
    """From 20000 up to the kernel's own range; where that begins too low, all from 20000 on."""
    try:
        kernels = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        kernels = 32_768
    return range(_LOWEST, kernels if kernels > _LOWEST + 1000 else _HIGHEST + 1)


def _is_free(port: int) -> bool:
    """On every address, since a listener on any of them may stand in the way."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
