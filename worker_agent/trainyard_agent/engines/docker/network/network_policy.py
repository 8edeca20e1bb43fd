"""Network policies of containers, as packet filter rules. Pure.

    all     the outside, and what this machine serves at its addresses
    egress  the outside only
    none    the replicas of the same run only

Addresses that the agent gives its replicas, or that its operator lists, stay reachable in each.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

NetworkPolicy = Literal["all", "egress", "none"]
POLICIES: tuple[NetworkPolicy, ...] = get_args(NetworkPolicy)

BRIDGE_PREFIX = "ty-"
"""Of the names of bridges with rules, and of the chains of their rules."""

_METADATA = ("169.254.0.0/16", "168.63.129.16/32", "100.100.100.200/32")
# Metadata services of clouds: they have the credentials of the machine. Some are its name server as well.
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """A host, by name or address, and a TCP or UDP port of it."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "Endpoint":
        """Parse HOST:PORT. Raises ValueError."""
        host, _, port = text.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16 or set(host) & set(":/[] "):
            raise ValueError(f"must look like HOST:PORT, such as 10.0.0.5:3128; this is {text!r}")
        return cls(host, int(port))


def endpoints_of(urls: Iterable[str]) -> list[Endpoint]:
    """The endpoints of all URLs among these values; others are ignored."""
    endpoints = set()
    for url in urls:
        try:
            parts = urlsplit(url.strip())
            port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
        except ValueError:
            continue
        if parts.hostname and port and ":" not in parts.hostname:  # networks of runs have no IPv6
            endpoints.add(Endpoint(parts.hostname, port))
    return sorted(endpoints)


def bridge_name(agent_id: str, network: str) -> str:
    """The name of a network's bridge, which the kernel limits to 15 characters."""
    return BRIDGE_PREFIX + hashlib.sha256(f"{agent_id} {network}".encode()).hexdigest()[:12]


def rules(policy: NetworkPolicy, subnet: str, allowed: Sequence[Endpoint]) -> list[str]:
    """The rules for IPv4 packets that containers of a network with this `subnet` send, in order, as iptables takes
    them. The hosts of `allowed` are addresses."""
    if policy == "all":
        return []
    answers = ["-m conntrack --ctstate ESTABLISHED -j RETURN"]
    exceptions = [
        f"-d {endpoint.host}/32 -p {protocol} -m {protocol} --dport {endpoint.port} -j RETURN"
        for endpoint in allowed
        for protocol in ("tcp", "udp")
    ]
    # Every address of this machine, whatever listens there; broadcasts and multicasts reach it as well.
    host = ["-m addrtype ! --dst-type UNICAST -j DROP"]
    if policy == "none":
        return [*answers, *exceptions, *host, f"-d {subnet} -j RETURN", "-j DROP"]
    names = [
        f"-d {metadata} -p {protocol} -m {protocol} --dport 53 -j RETURN"
        for metadata in _METADATA
        for protocol in ("tcp", "udp")
    ]
    return [*answers, *exceptions, *host, *names, *(f"-d {metadata} -j DROP" for metadata in _METADATA)]
