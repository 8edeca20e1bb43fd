"""Which subnets networks of runs get."""

from typing import Any

from trainyard_agent.engines.docker.client import EngineRefused
from trainyard_agent.engines.docker.network.networks import Networks
from trainyard_agent.engines.docker.spec import Owner
from unit.agent.stub_server import run_order

CHIEF, WORKER = "master-replica-0", "worker-replica-0"


class SubnetEngine:
    """An engine that gives the next subnet to a network that asks for none, and refuses those in use."""

    url = "unix:///engine.sock"

    def __init__(self) -> None:
        self.subnets: dict[str, str] = {}
        self.created = 0

    def create_network(self, body: dict[str, Any]) -> str:
        self.created += 1
        explicit = [one["Subnet"] for one in body.get("IPAM", {}).get("Config", ())]
        subnet = explicit[0] if explicit else f"10.{self.created}.0.0/24"
        if subnet in self.subnets.values():
            raise EngineRefused(403, "Pool overlaps with other one on this address space")
        self.subnets[f"n{self.created}"] = subnet
        return f"n{self.created}"

    def remove_network(self, network: str) -> None:
        del self.subnets[network]

    def subnet(self, network: str) -> str:
        return self.subnets[network]


def test_gang_gets_the_subnet_of_a_run_that_has_ended_unless_somebody_else_has_it() -> None:
    engine = SubnetEngine()
    networks = Networks(engine, Owner("a"))  # type: ignore[arg-type]

    first = networks.create(run_order("1", CHIEF, WORKER))
    assert engine.created == 2
    (network,) = engine.subnets
    networks.remove(network, {})
    assert networks.create(run_order("2", CHIEF, WORKER)) == first
    assert engine.created == 3

    (network,) = engine.subnets
    networks.remove(network, {})
    engine.subnets["of somebody else"] = "10.1.0.0/24"
    third = networks.create(run_order("3", CHIEF, WORKER))
    assert third != first
    assert set(third) == {CHIEF, WORKER}
