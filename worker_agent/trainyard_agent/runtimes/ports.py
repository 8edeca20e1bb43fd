"""Free ports for the replicas of a run. Standard library only: a program of Slurm's nodes uses it, too."""

import secrets
import socket
from collections.abc import Collection, Iterable, Set
from pathlib import Path

_LOWEST = 20_000
_HIGHEST = 65_535
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class NoFreePort(Exception):
    """No port of the range is free."""


def addresses(host: str, tasks: Collection[str], taken: Iterable[str], among: range | None = None) -> dict[str, str]:
    """An address `host:port` for each task, whose ports none of the addresses `taken` has. Raises NoFreePort."""
    used = {int(address.rpartition(":")[2]) for address in taken}
    free = free_ports(len(tasks), used, among)
    return {task: f"{host}:{port}" for task, port in zip(tasks, free, strict=True)}


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address `host:port`. Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def free_ports(count: int, taken: Set[int], among: range | None = None) -> list[int]:
    """Distinct random ports without a listener and not in `taken`, of the range `among`.

    Without one they are below the kernel's ephemeral range, so that no outgoing connection uses a port before the
    replica listens.
    """
    among = among or _range()
    candidates = [port for port in among if port not in taken]
    free: list[int] = []
    while len(free) < count:
        if not candidates:
            raise NoFreePort(f"no {count} free ports between {among.start} and {among.stop - 1}")
        port = candidates.pop(secrets.randbelow(len(candidates)))
        if _is_free(port):
            free.append(port)
    return free


def _range() -> range:
    """From 20000 to the kernel's ephemeral range; if that begins too low, all from 20000."""
    try:
        ephemeral = int(_EPHEMERAL.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        ephemeral = 32_768
    return range(_LOWEST, ephemeral if ephemeral > _LOWEST + 1000 else _HIGHEST + 1)


def _is_free(port: int) -> bool:
    """Whether the port is free on every address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
