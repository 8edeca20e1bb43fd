"""Networks of runs, with the packet filter rules of the agent's network policy.

The rules of a network are in force before the first container is connected to it, and until it is gone. Where they
cannot be, there is no network, and the run fails.
"""

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard_agent.engines.docker import spec as docker_spec
from trainyard_agent.engines.docker.client import DockerClient, EngineRefused
from trainyard_agent.engines.docker.network.firewall import Firewall, NotEnforced
from trainyard_agent.engines.docker.network.network_policy import Endpoint, NetworkPolicy, rules
from trainyard_agent.engines.docker.spec import Owner
from trainyard_protocol.wire.sync import RunOrder

_SUBNETS_TRIED = 5  # another user of the engine may get one first
_SUBNET_KEPT_S = 600.0
_THIS_MACHINE = frozenset({"localhost", docker_spec.HOST})

_log = logging.getLogger(__name__)


class Networks:
    """The networks of one agent. `allowed` are reachable from replicas under every policy, `package_index` from
    containers that install packages. Their hosts are names or addresses, of which loopback ones mean this machine."""

    def __init__(
        self,
        engine: DockerClient,
        owner: Owner,
        policy: NetworkPolicy = "all",
        allowed: Sequence[Endpoint] = (),
        package_index: Sequence[Endpoint] = (),
        firewall: Firewall | None = None,
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._policy = policy
        self._allowed = {docker_spec.NETWORK: allowed, docker_spec.STAGING_NETWORK: package_index}
        self._firewall = firewall or Firewall()
        self._creation = threading.RLock()
        self._subnets = _Subnets()

    @property
    def dns(self) -> list[str]:
        """Name servers of replicas; none: the engine's. A policy of none includes what an engine asks for them."""
        return ["127.0.0.1"] if self._policy == "none" else []

    def check(self) -> None:
        """Raises NotEnforced if this process cannot enforce the policy on networks of the engine, EngineError."""
        if self._policy == "all":
            return
        self._firewall.check()
        name = f"trainyard-check-{self._owner.agent_id}"
        body = docker_spec.policy_bridge(self._owner, name, self._policy)
        self._engine.remove_network(name)  # of an agent that was killed
        network = self._engine.create_network({"Name": name, "Driver": "bridge", "Options": body["Options"]})
        try:
            self._require_interface(body["Labels"][docker_spec.BRIDGE])
        finally:
            self._engine.remove_network(network)

    def create(self, order: RunOrder) -> dict[str, str]:
        """Create the run's network. Returns the addresses of its replicas, which a lone replica does not need. Fixed
        addresses require an explicit subnet, and the engine knows a free one: that of a run that has just ended, or
        that of a network which is created and removed for it. Raises EngineError, ValueError."""
        if len(order.replicas) == 1:
            self._create(docker_spec.network_spec(self._owner, order, policy=self._policy))
            return {}
        for attempt in range(1, _SUBNETS_TRIED + 1):
            with self._creation:  # no other run of ours gets it in between
                subnet = self._subnets.claim() or self._free_subnet(order)
                addresses = docker_spec.ip_addresses(order, subnet)
                try:
                    network = self._create(docker_spec.network_spec(self._owner, order, subnet, self._policy))
                except EngineRefused:
                    if attempt == _SUBNETS_TRIED:
                        raise
                else:
                    self._subnets.use(network, subnet)
                    return addresses
        raise AssertionError("unreachable")

    def _free_subnet(self, order: RunOrder) -> str:
        network = self._engine.create_network(docker_spec.network_spec(self._owner, order))
        subnet = self._engine.subnet(network)
        self._engine.remove_network(network)
        return subnet

    def create_for_staging(self, order: RunOrder) -> str:
        """Create the network of a container that installs packages, which needs the outside under every policy.
        Returns its name, "" for the engine's default one. Raises EngineError."""
        if self._policy == "all":
            return ""
        body = docker_spec.network_spec(self._owner, order, policy="egress", role=docker_spec.STAGING_NETWORK)
        self._create(body)
        return str(body["Name"])

    def remove(self, network: str, labels: Mapping[str, str]) -> None:
        """Remove a network, if there is one, and then its rules. Raises EngineError."""
        self._engine.remove_network(network)
        self._subnets.release(network)
        if docker_spec.BRIDGE in labels:
            try:
                self._firewall.remove(labels[docker_spec.BRIDGE])
            except NotEnforced as error:  # they affect nothing any more
                _log.warning("the rules of the network %s stay: %s", network[:12], error)

    def repair(self) -> None:
        """Install the rules again that somebody else removed, and remove those of networks that are gone. Raises
        EngineError."""
        with self._creation:
            filtered = self._engine.networks(f"{docker_spec.AGENT}={self._owner.agent_id}", docker_spec.BRIDGE)
            if not filtered and self._policy == "all":
                return
            enforced, orphans = self._firewall.survey()
            for network, labels in filtered.items():
                bridge = labels[docker_spec.BRIDGE]
                if bridge not in enforced and self._firewall.has_interface(bridge):
                    _log.warning("the rules of the network %s were gone; they are installed again", network[:12])
                    self._install(network, labels)
            for bridge in orphans:
                self._firewall.remove(bridge)

    def _create(self, body: Mapping[str, Any]) -> str:
        """Returns the id of the network, whose rules are in force."""
        labels = body["Labels"]
        with self._creation:  # not between here and its rules is it to be repaired
            network = self._engine.create_network(body)
            if docker_spec.BRIDGE not in labels:
                return network
            try:
                self._require_interface(labels[docker_spec.BRIDGE])
                self._install(network, labels)
            except BaseException:
                self.remove(network, labels)
                raise
            return network

    def _install(self, network: str, labels: Mapping[str, str]) -> None:
        peers = [Endpoint.parse(address) for address in labels.get(docker_spec.PEERS, "").split(",") if address]
        allowed = sorted(set(self._resolved([*self._allowed[labels[docker_spec.ROLE]], *peers])))
        policy: NetworkPolicy = "none" if labels[docker_spec.POLICY] == "none" else "egress"
        self._firewall.install(labels[docker_spec.BRIDGE], rules(policy, self._engine.subnet(network), allowed))

    def _require_interface(self, bridge: str) -> None:
        if not self._firewall.has_interface(bridge):
            raise NotEnforced(
                f"the networks of the container engine at {self._engine.url} are not in this agent's network "
                "namespace, so it cannot filter their packets"
            )

    def _resolved(self, endpoints: Sequence[Endpoint]) -> Iterator[Endpoint]:
        """The endpoints by IPv4 address; one that cannot be resolved stays unreachable."""
        for endpoint in endpoints:
            try:
                is_here = endpoint.host in _THIS_MACHINE or endpoint.host.startswith("127.")
                host = self._engine.gateway() if is_here else endpoint.host
                for resolved in {found[4][0] for found in socket.getaddrinfo(host, None, socket.AF_INET)}:
                    yield Endpoint(str(ipaddress.IPv4Address(resolved)), endpoint.port)
            except (OSError, ValueError) as error:
                _log.warning("containers cannot reach %s: its address is unknown (%s)", endpoint, error)


class _Subnets:
    """Subnets that the engine has given to networks of ours. One whose network was removed is the first choice for the
    next run, for a while: a route of this machine may take it, which the engine alone would avoid. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[str, str] = {}
        self._free: list[tuple[float, str]] = []

    def use(self, network: str, subnet: str) -> None:
        with self._lock:
            self._used[network] = subnet

    def release(self, network: str) -> None:
        """Its network was removed. Twice, or unknown: nothing."""
        with self._lock:
            if subnet := self._used.pop(network, ""):
                self._free.append((time.monotonic(), subnet))

    def claim(self) -> str:
        """A subnet that is free, as far as known; "" if there is none."""
        with self._lock:
            self._free = [subnet for subnet in self._free if time.monotonic() - subnet[0] < _SUBNET_KEPT_S]
            return self._free.pop()[1] if self._free else ""
