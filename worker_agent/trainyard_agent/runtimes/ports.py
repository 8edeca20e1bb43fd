"""Addresses and ports at which replicas listen: for those of their own machine, and for other machines."""

import ipaddress
import os
import secrets
import socket
from collections.abc import Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

import psutil

DEFAULT_PORTS = range(30_000, 31_000)
"""The ports for other machines."""

_LOWEST = 20_000
_HIGHEST = 65_535
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class NoFreePort(Exception):
    """No port of the range is free."""


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


@dataclass(frozen=True)
class Reach:
    """An address of this machine and the range of the ports of replicas that listen on it. `address` "": this agent has
    no part of a gang over several."""

    address: str = ""
    ports: range = DEFAULT_PORTS

    @cached_property
    def interface(self) -> str:
        """The name of the network interface with the address, for libraries that bind to one (NCCL, Gloo); "" if none
        has it."""
        for name, addresses in psutil.net_if_addrs().items():
            if any(address.address.partition("%")[0] == self.address for address in addresses):
                return name
        return ""

    @property
    def host_name_problem(self) -> str:
        """A sentence about a host name that leads to no other machine, where replicas have it; "" without one."""
        name = socket.gethostname()
        try:
            found = {str(item[4][0]) for item in socket.getaddrinfo(name, None)}
        except OSError:
            found = set()
        if not self.address or os.geteuid() == 0 or self.address in found:
            return ""
        leads = f"leads to {', '.join(sorted(found))}" if found else "cannot be resolved"
        return (
            f"The host name {name} {leads}: there the collectives of JAX on CPUs (Gloo) listen, also of a gang over "
            f"several agents. Give it {self.address} in /etc/hosts, or run this agent as root, which gives replicas a "
            "name of their own."
        )


def own_address(text: str) -> str:
    """An address of this machine that others can reach. Raises ValueError."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"must be an IP address of this machine, such as 10.0.0.7; this is {text!r}") from None
    if address.is_loopback or address.is_unspecified or not Reach(text).interface:
        found = {
            item.address
            for items in psutil.net_if_addrs().values()
            for item in items
            if item.family == socket.AF_INET and not item.address.startswith("127.")
        }
        others = ", ".join(sorted(found)) or "none"
        raise ValueError(f"{text} is not an address at which others reach this machine, which has {others}")
    return text


def address_towards(server: str) -> str:
    """The address of this machine from which it calls the server; "" where that is loopback, which no other machine
    reaches, or where there is no way to it now."""
    parts = urlsplit(server)
    try:
        family, kind, *_, there = socket.getaddrinfo(parts.hostname, parts.port or 443, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)  # sends nothing
            address = str(probe.getsockname()[0])
    except (OSError, ValueError):
        return ""
    return "" if ipaddress.ip_address(address.partition("%")[0]).is_loopback else address
