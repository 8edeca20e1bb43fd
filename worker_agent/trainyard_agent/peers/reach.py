"""The address at which other machines reach the replicas of this one, and the ports of their listeners there."""

import ipaddress
import os
import socket
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

import psutil

DEFAULT_PORTS = range(30_000, 31_000)


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
        resolved = f"resolves to {', '.join(sorted(found))}" if found else "cannot be resolved"
        return (
            f"The host name {name} {resolved}, and JAX on CPUs (Gloo) binds to the address of the host name. For jobs "
            f"over several agents, add the line `{self.address} {name}` to /etc/hosts, or run this agent as root."
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
        raise ValueError(f"{text} is not an address at which other machines can reach this one, which has {others}")
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
