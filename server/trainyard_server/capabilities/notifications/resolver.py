"""IP addresses of the hosts that webhooks go to, and those of this machine."""

import ipaddress
import socket
import time
from collections.abc import Sequence, Set
from functools import partial

from trainyard_protocol.net.loopback import is_address
from trainyard_server.capabilities.notifications.delivery import Address
from trainyard_server.capabilities.notifications.threads import FairThreads

_LOOKUPS, _LOOKUPS_OF_PROJECT = 64, 4

_UNANSWERED_S = 10.0
"""The time after which a lookup that still runs is not begun again."""

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class Resolver:
    """Lookups by the machine's resolver, which blocks for as long as it likes: in threads of their own."""

    def __init__(self) -> None:
        self._threads = FairThreads("resolver", _LOOKUPS, _LOOKUPS_OF_PROJECT)
        self._begun: dict[tuple[str, str], float] = {}
        """The begin of each lookup that runs, by project and name: one project's load is no failure of another's."""

    async def addresses(self, project: str, host: str, port: int) -> Sequence[str]:
        """The addresses of a host name, or the address that it is. Raises OSError, UnicodeError."""
        if is_address(host):
            return (host,)
        begun = self._begun.get((project, host))
        if begun is not None and time.monotonic() - begun >= _UNANSWERED_S:
            raise TimeoutError(f"an earlier lookup of {host} has not been answered yet")
        return await self._threads.run(project, partial(self._look_up, project, host, port))

    def _look_up(self, project: str, host: str, port: int) -> Sequence[str]:
        self._begun.setdefault((project, host), time.monotonic())
        try:
            return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        finally:
            self._begun.pop((project, host), None)


def own_addresses() -> Set[Address]:
    """The addresses of this machine's interfaces now: they change, as with containers and VPNs."""
    import psutil  # a server without webhooks never needs it

    return {
        ipaddress.ip_address(address.address.partition("%")[0])
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in _FAMILIES
    }
