"""A gang over two machines in containers: two agents of one engine, each with an address of its own, at which the
replicas of both reach each other, whatever else the network policy keeps from them.
"""

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from beds.engines import Engine
from integration.engine.runs import CHIEF, WORKER, Host, host_on
from trainyard_agent.engines.docker.network.network_policy import NetworkPolicy
from trainyard_agent.peers.reach import Reach
from trainyard_protocol.wire.sync import SpreadOrder
from unit.agent.stub_server import run_order

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="addresses of a machine take root")

HERE, THERE, OTHER = "198.51.100.11", "198.51.100.12", "worker-replica-1"
RING = """
import json, os, socket, sys, time
addresses, me = json.loads(os.environ['ADDRESSES']), sys.argv[1]
listener = socket.create_server(('', int(addresses[me].rpartition(':')[2])))
others = {task: there for task, there in addresses.items() if task != me}
for there in others.values():
    host, _, port = there.rpartition(':')
    give_up_at = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((host, int(port)), 5) as connection:
                connection.sendall((me + '\\n').encode())
                break
        except OSError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.1)
met = set()
while len(met) < len(others):
    connection, _ = listener.accept()
    met.add(connection.makefile().readline().strip())
print(' '.join(sorted(met)), socket.gethostname())
"""


@pytest.fixture
def addresses() -> Iterator[None]:
    """The addresses of two machines on this one."""
    device = f"ty{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "link", "add", device, "type", "dummy"], check=True)
    try:
        for address in (HERE, THERE):
            subprocess.run(["ip", "address", "add", f"{address}/32", "dev", device], check=True)
        subprocess.run(["ip", "link", "set", device, "up"], check=True)
        yield
    finally:
        subprocess.run(["ip", "link", "delete", device], check=True)


@pytest.mark.usefixtures("addresses")
@pytest.mark.parametrize(
    ("policy", "host_network"), [("all", False), ("egress", False), ("none", False), ("all", True)]
)
def test_replicas_of_both_machines_reach_each_other_at_their_addresses(
    engine: Engine, tmp_path: Path, policy: NetworkPolicy, host_network: bool
) -> None:
    with ExitStack() as stack:
        parts: list[tuple[Host, tuple[str, ...]]] = []
        machines: dict[str, tuple[str, ...]] = {HERE: (CHIEF, WORKER), THERE: (OTHER,)}
        for address, tasks in machines.items():
            reach = Reach(address)
            host = stack.enter_context(host_on(engine, tmp_path / address, reach, host_network, policy=policy))
            parts.append((host, tasks))
        spread = SpreadOrder(gang="g")
        orders = [run_order(uuid.uuid4().hex, *tasks).model_copy(update={"spread": spread}) for _, tasks in parts]
        handles = [host.runtime.place(order) for (host, _), order in zip(parts, orders, strict=True)]
        known = {task: address for handle in handles for task, address in handle.addresses.items()}
        assert {address.partition(":")[0] for address in known.values()} == {HERE, THERE}
        assert all(bool(handle.interface) is host_network for handle in handles)
        for (host, tasks), order in zip(parts, orders, strict=True):
            begins = order.model_copy(update={"spread": spread.model_copy(update={"addresses": known, "starts": True})})
            assert host.runtime.place(begins).addresses.keys() == set(tasks)
            environment = {"ADDRESSES": json.dumps(known), "RING": RING}
            script = 'exec python3 -c "$RING" '
            launches = [host.launch(f"{script}{task}", task, environment=environment) for task in tasks]
            host.runtime.start(order.run_id, launches)
        for (host, tasks), order in zip(parts, orders, strict=True):
            for task in tasks:
                met = host.log(order.run_id, task)[-1].split()[:-1]
                assert met == sorted(known.keys() - {task}), host.log(order.run_id, task)
