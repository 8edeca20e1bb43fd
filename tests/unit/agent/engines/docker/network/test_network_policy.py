"""Network policies, as rules, and the firewall that installs them, without an engine."""

from collections.abc import Sequence
from typing import Any

import pytest

from trainyard_agent.engines.docker.network.firewall import Firewall, NotEnforced, run_command
from trainyard_agent.engines.docker.network.network_policy import Endpoint, endpoints_of, rules
from trainyard_agent.engines.docker.network.networks import Networks
from trainyard_agent.engines.docker.spec import Owner
from unit.agent.stub_server import run_order


def test_only_hosts_and_ports_of_urls_are_endpoints() -> None:
    values = {
        "http://172.17.0.1:8471/secret": [Endpoint("172.17.0.1", 8471)],
        "https://user:word@index.example.com/simple": [Endpoint("index.example.com", 443)],
        "http://proxy": [Endpoint("proxy", 80)],
        "socks5://proxy:1080": [Endpoint("proxy", 1080)],
        "http://[fd00::1]:80": [],
        "http://host:port": [],
        "gs://bucket/path": [],
        "12:30": [],
        "": [],
    }
    assert {value: endpoints_of([value]) for value in values} == values


def test_endpoints_are_a_host_and_a_port() -> None:
    assert Endpoint.parse("10.0.0.5:3128") == Endpoint("10.0.0.5", 3128)
    for text in ("10.0.0.5", ":80", "host:0", "host:65536", "http://host:80", "[::1]:80", "host:x"):
        with pytest.raises(ValueError, match="must look like HOST:PORT"):
            Endpoint.parse(text)


def test_rules_end_in_what_the_policy_refuses() -> None:
    allowed = [Endpoint("172.17.0.1", 80)]
    assert rules("all", "10.1.0.0/24", allowed) == []
    host = "-m addrtype ! --dst-type UNICAST -j DROP"
    for policy, last in (("egress", "-d 100.100.100.200/32 -j DROP"), ("none", "-j DROP")):
        found = rules(policy, "10.1.0.0/24", allowed)  # type: ignore[arg-type]
        assert found[-1] == last
        exception = found.index("-d 172.17.0.1/32 -p tcp -m tcp --dport 80 -j RETURN")
        assert exception < found.index(host)


def test_missing_or_failing_iptables_says_so() -> None:
    with pytest.raises(NotEnforced, match="there is no program trainyard-no-such-program"):
        run_command(["trainyard-no-such-program"], "")
    with pytest.raises(NotEnforced, match="sh failed: not as this user"):
        run_command(["sh", "-c", "echo not as this user >&2; exit 4"], "")


class OneNetwork:
    """An engine of which only networks are asked for."""

    url = "unix:///engine.sock"

    def __init__(self) -> None:
        self.networks: list[str] = []

    def create_network(self, body: dict[str, Any]) -> str:
        self.networks.append(body["Name"])
        return str(body["Name"])

    def remove_network(self, name: str) -> None:
        if name in self.networks:
            self.networks.remove(name)

    def subnet(self, network: str) -> str:
        return "10.1.0.0/24"


class Elsewhere(Firewall):
    """Installs rules where the engine's networks are not."""

    def __init__(self) -> None:
        super().__init__(lambda command, text: "")

    @staticmethod
    def has_interface(bridge: str) -> bool:
        return False


class Refuses(Firewall):
    def __init__(self) -> None:
        super().__init__(self._refuse)

    @staticmethod
    def has_interface(bridge: str) -> bool:
        return True

    @staticmethod
    def _refuse(command: Sequence[str], text: str) -> str:
        raise NotEnforced("iptables failed: Permission denied")


@pytest.mark.parametrize(
    ("firewall", "message"), [(Elsewhere(), "not in this agent's network namespace"), (Refuses(), "Permission denied")]
)
def test_network_without_rules_does_not_stay(firewall: Firewall, message: str) -> None:
    engine = OneNetwork()
    networks = Networks(engine, Owner("a"), "egress", firewall=firewall)  # type: ignore[arg-type]
    order = run_order("r", "master-replica-0")
    for attempt in (networks.check, lambda: networks.create(order), lambda: networks.create_for_staging(order)):
        with pytest.raises(NotEnforced, match=message):
            attempt()
        assert engine.networks == []
