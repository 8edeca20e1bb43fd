"""Network policies of containers in a real engine: what is reached under each, and the rules in force."""

import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from beds.engines import Engine, OwnEngine
from integration.engine.runs import CHIEF, WORKER, Host, host_on
from trainyard_agent.engines.docker import client as docker_client
from trainyard_agent.engines.docker import spec
from trainyard_agent.engines.docker.network.firewall import Firewall
from trainyard_agent.engines.docker.network.network_policy import BRIDGE_PREFIX, Endpoint, NetworkPolicy
from trainyard_agent.main import examine
from trainyard_agent.runtimes.replica_names import host_name
from trainyard_agent.settings import AgentSettings
from trainyard_protocol.job.cluster import Task

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="packet filter rules take root")

OUTSIDE, METADATA, HOST_THERE = "198.51.100.2", "169.254.169.254", "198.51.100.1"
REACHED: Mapping[NetworkPolicy, set[str]] = {
    "all": {"peer", "allowed", "outside", "host", "host elsewhere", "metadata"},
    "egress": {"peer", "allowed", "outside"},
    "none": {"peer", "allowed"},
}
"""Of `Scene.targets`. Another run's replica never is."""

_SERVE = """
import socket
server = socket.create_server(('', 2222))
print('up', flush=True)
while True: server.accept()[0].sendall(b'hello')
"""
_TRY = """
import json, os, socket, threading, time
def reached(name, host, port, patience_s):
    give_up_at = time.monotonic() + patience_s
    while time.monotonic() < give_up_at:
        try:
            with socket.create_connection((host, port), 1.5) as connection:
                results[name] = connection.recv(5) == b'hello'
            return
        except OSError:
            time.sleep(0.1)
results = {}
threads = [threading.Thread(target=reached, args=target) for target in json.loads(os.environ['TARGETS'])]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps(sorted(name for name, answered in results.items() if answered)))
"""


@contextmanager
def greeter() -> Iterator[int]:
    """A service of this machine on all its addresses; its port."""
    with closing(socket.create_server(("0.0.0.0", 0))) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # closed
                    return
                connection.sendall(b"hello")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@contextmanager
def outside() -> Iterator[None]:
    """Another machine, as a network namespace, with a service and a cloud's metadata service at port 80."""
    name = f"out-{uuid.uuid4().hex[:8]}"
    serve = (
        "import socket\ns = socket.create_server(('', 80)); print('up', flush=True)\n"
        "while True:\n    c, _ = s.accept(); c.sendall(b'hello'); c.close()"
    )

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    with ExitStack() as stack:
        ip("netns", "add", name)
        stack.callback(ip, "netns", "delete", name)
        ip("link", "add", name, "type", "veth", "peer", "eth0", "netns", name)
        ip("address", "add", f"{HOST_THERE}/24", "dev", name)
        ip("link", "set", name, "up")
        for address in (f"{OUTSIDE}/24", f"{METADATA}/32"):
            ip("-n", name, "address", "add", address, "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", HOST_THERE)
        ip("route", "add", METADATA, "via", OUTSIDE)
        served = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{name}", sys.executable, "-c", serve], stdout=subprocess.PIPE
        )
        stack.callback(served.wait)
        stack.callback(served.kill)
        assert served.stdout is not None
        stack.enter_context(served.stdout)
        assert served.stdout.readline() == b"up\n"
        yield


@dataclass
class Scene:
    """A machine with two services, of which one may be reached, a machine outside, and another run."""

    engine: Engine
    root: Path
    service: int
    allowed: int
    stranger: str
    bridges: set[str] = field(default_factory=set)
    """Of the runs that have been started."""

    @contextmanager
    def host(self, policy: NetworkPolicy) -> Iterator[Host]:
        allowed = [Endpoint("localhost", self.allowed)]
        with host_on(self.engine, self.root / policy, policy=policy, allowed=allowed) as host:
            yield host

    def targets(self, peer: str, policy: NetworkPolicy) -> list[tuple[str, str, int, float]]:
        """Name, host, port, and seconds to try it: those that are to be reached may answer late."""
        targets = [
            ("peer", peer, 2222),
            ("allowed", "host.docker.internal", self.allowed),
            ("outside", OUTSIDE, 80),
            ("metadata", METADATA, 80),
            ("host", "host.docker.internal", self.service),
            ("host elsewhere", HOST_THERE, self.service),
            ("stranger", self.stranger, 2222),
        ]
        return [(*target, 30.0 if target[0] in REACHED[policy] else 1.5) for target in targets]

    def reached(self, policy: NetworkPolicy) -> set[str]:
        with self.host(policy) as host:
            order = host.order(CHIEF, WORKER)
            peer = host_name(order.run_id, Task.parse(WORKER))
            environment = {"TARGETS": json.dumps(self.targets(peer, policy)), "TRY": _TRY}
            host.runtime.place(order)
            host.runtime.start(
                order.run_id,
                [
                    host.launch('exec python3 -c "$TRY"', environment=environment),
                    host.launch(f'exec python3 -c "{_SERVE}"', WORKER),
                ],
            )
            (network,) = self.engine.client().networks.list(filters={"label": f"{spec.AGENT}={host.owner.agent_id}"})
            self.bridges |= {value for label, value in network.attrs["Labels"].items() if label == spec.BRIDGE}
            return set(json.loads(host.log(order.run_id)[-1]))


@pytest.fixture
def scene(engine: Engine, tmp_path: Path) -> Iterator[Scene]:
    with greeter() as service, greeter() as allowed, outside(), host_on(engine, tmp_path / "other") as other:
        run_id = other.start(f'exec python3 -c "{_SERVE}"')
        other.until(lambda: other.printed(run_id) == ["up"])
        (container,) = engine.client().containers.list(filters={"label": f"{spec.RUN}={run_id}"})
        (network,) = container.attrs["NetworkSettings"]["Networks"].values()
        yield Scene(engine, tmp_path, service, allowed, network["IPAddress"])


def test_each_policy_reaches_what_it_says_and_leaves_no_rule(scene: Scene) -> None:
    with ThreadPoolExecutor() as pool:
        assert dict(zip(REACHED, pool.map(scene.reached, REACHED), strict=True)) == REACHED
    assert len(scene.bridges) == 2  # a run with the policy `all` has no rules
    enforced, orphans = Firewall().survey()
    assert scene.bridges.isdisjoint(enforced | orphans)


def test_rules_that_somebody_removed_are_installed_again_and_orphaned_ones_removed(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    firewall, orphan = Firewall(), f"{BRIDGE_PREFIX}{uuid.uuid4().hex[:12]}"
    with host_on(engine, tmp_path, policy="egress") as host:
        host.start("sleep 1000")
        (network,) = engine.client().networks.list(filters={"label": f"{spec.AGENT}={host.owner.agent_id}"})
        bridge = network.attrs["Labels"][spec.BRIDGE]
        assert bridge in firewall.survey()[0]
        firewall.remove(bridge)
        firewall.install(orphan, ["-j DROP"])
        host.new_agent()
        enforced, orphans = firewall.survey()
        assert bridge in enforced
        assert orphan not in orphans
    assert bridge not in set.union(*firewall.survey())

    firewall.install(orphan, ["-j DROP"])
    (found,) = [one for one in examine(AgentSettings(state_dir=tmp_path)) if orphan in one.found]
    subprocess.run(["sh", "-c", found.command], check=False, capture_output=True)  # there may be no ip6tables
    assert orphan not in firewall.survey()[1]


def test_address_of_the_host_is_known_on_a_new_bridge(own_engine: OwnEngine) -> None:
    """Docker 20.10 does not say what it is."""
    assert docker_client.DockerClient(own_engine.url).gateway() == own_engine.bridge_address()
