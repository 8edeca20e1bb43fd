"""A real cluster of Kubernetes on this machine: two nodes, by default, and nothing left of it afterwards.

    with beds.kubernetes.bed.started() as bed, KubeApi(bed.admin) as api:
        api.create("/api/v1/namespaces/default/pods", {... "image": BASE_IMAGE ...})

Everything lives in namespaces of Linux (`machines.py`); from outside there is one port of 127.0.0.1, that of the API
server. Several beds on one host do not meet.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from beds import debian
from beds.kubernetes import build, registry
from beds.kubernetes.build import NoKubernetes
from beds.kubernetes.control_plane import ControlPlane
from beds.kubernetes.images import Image, one_program
from beds.kubernetes.kube_api import KubeApi, Object, Refused
from beds.kubernetes.machines import Home, remaining, sweep, wait_until
from beds.kubernetes.node import PAUSE_IMAGE, WITH_PACKAGES, Node, wait_for_containerd

BASE_IMAGE = "docker.io/library/trainyard-test-base:bed"
"""Debian with python3: what the tests' container engine has. Nothing can be pulled in the bed."""

_REGISTRY_PORT = 5000
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Bed:
    """To be used in one thread, that which started it."""

    def __init__(self, home: Home, control: ControlPlane, nodes: list[Node], api: KubeApi) -> None:
        self.name = home.name
        self.admin = control.admin
        """A kubeconfig that may do everything."""
        self.kubectl = build.programs()["kubectl"]
        self._control, self._api = control, api
        self._nodes = {node.name: node for node in nodes}

    @property
    def nodes(self) -> list[str]:
        return list(self._nodes)

    def add_namespace(self, name: str) -> None:
        """One in which pods may be made."""
        self._api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self._wait_until_open(name)

    def with_role(self, name: str, rules: Sequence[Object]) -> Path:
        """A kubeconfig of a service account `name`, in a new namespace of that name, that may do there what the rules
        of its Role say and nothing else."""
        roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{name}"
        accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
        group = "rbac.authorization.k8s.io"
        subject = {"kind": "ServiceAccount", "name": name, "namespace": name}
        role = {"apiGroup": group, "kind": "Role", "name": name}
        self.add_namespace(name)
        self._api.create(accounts, {"metadata": {"name": name}})
        self._api.create(f"{roles}/roles", {"metadata": {"name": name}, "rules": list(rules)})
        binding = {"metadata": {"name": name}, "subjects": [subject], "roleRef": role}
        self._api.create(f"{roles}/rolebindings", binding)
        token = self._api.create(f"{accounts}/{name}/token", {"spec": {"expirationSeconds": 86400}})
        return self._control.kubeconfig_with_token(name, token["status"]["token"], name)

    def is_ready(self, node: str) -> bool:
        return self._readiness(node)[0] == "True"

    def wait_until_ready(self, node: str, ready: bool = True) -> None:
        """Ready, or not ready: what the cluster itself says of the node."""
        what = f"{node} is {'ready' if ready else 'not ready'}"
        wait_until(lambda: self.is_ready(node) == ready, what, self._ended)

    def add(self, image: Image) -> None:
        """Onto every node that is on."""
        for node in self._nodes.values():
            if node.machine.is_on:
                node.add(image)

    def door_to_host(self, port: int) -> AbstractContextManager[str]:
        """Let pods reach a port of this host's 127.0.0.1; the `ADDRESS:PORT` at which they do."""
        return self._control.door_out(port)

    @contextmanager
    def cut(self, node: str) -> Iterator[None]:
        """Pull its network cable: its pods run on, and nobody hears of them."""
        self._control.machine.link("link", "set", node, "down")
        try:
            yield
        finally:
            self._control.machine.link("link", "set", node, "up")

    def kill(self, node: str) -> None:
        """Pull its plug: everything on it is gone at once. The cluster finds out by itself."""
        self._control.unplug(self._nodes[node])
        self._nodes[node].machine.off()

    def boot(self, node: str) -> None:
        """A machine that was killed comes back, with its disks, and is ready."""
        self._boot([self._nodes[node]])
        _, before = self._readiness(node)  # which may still be that of the machine that was killed
        self._nodes[node].start_kubelet()

        def is_back() -> bool:
            status, reported = self._readiness(node)
            return status == "True" and reported != before

        wait_until(is_back, f"{node} is back", self._ended)

    @contextmanager
    def without_api_server(self) -> Iterator[None]:
        """Killed, and started again at the end. What runs on the nodes runs on."""
        self._control.machine.kill("kube-apiserver")
        try:
            yield
        finally:
            self._control.start_api_server()
            self._control.wait_until_ready(self._api)

    @contextmanager
    def without_etcd(self) -> Iterator[None]:
        """Killed, and started again at the end, with its disk."""
        self._control.machine.kill("etcd")
        try:
            yield
        finally:
            self._control.start_etcd()
            self._control.wait_until_ready(self._api)

    @contextmanager
    def empty_registry(self) -> Iterator[str]:
        """A registry beside each node that has no image; its address there."""
        nodes = [node for node in self._nodes.values() if node.machine.is_on]
        for node in nodes:
            command = [sys.executable, registry.__file__, str(_REGISTRY_PORT)]
            node.machine.start_outside("registry", command, inside=("net",))
        try:
            yield f"127.0.0.1:{_REGISTRY_PORT}"
        finally:
            for node in nodes:
                node.machine.stop_outside("registry")

    def cordon(self, node: str, cordoned: bool = True) -> None:
        """Allow no new pods on the node."""
        self._api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": cordoned or None}})

    def last_words(self) -> str:
        """The ends of all logs of components: short, since what failed is above them in a report."""
        ends = []
        for log in sorted(self.admin.parent.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()[-6:]
            ends += [f"--- {log.name}", *(line[:250] for line in lines)] if lines else []
        return "\n".join(ends)

    def restart_kubelet(self, node: str) -> None:
        """Killed, and started again at once. What runs on the node runs on."""
        self._nodes[node].machine.kill("kubelet")
        self._nodes[node].start_kubelet()

    def _start(self) -> None:
        nodes = list(self._nodes.values())
        self._control.boot()
        self._control.start()
        self._boot(nodes)
        with ThreadPoolExecutor() as pool:
            list(pool.map(_load, nodes))
        self._control.wait_until_ready(self._api)
        self._control.start_the_rest()
        for node in nodes:
            node.start_kubelet()
        for name in self.nodes:
            self.wait_until_ready(name)
        handler = {"metadata": {"name": WITH_PACKAGES}, "handler": WITH_PACKAGES}
        self._api.create("/apis/node.k8s.io/v1/runtimeclasses", handler)
        self._wait_until_open("default")

    def _boot(self, nodes: list[Node]) -> None:
        for node in nodes:
            node.machine.boot()
            self._control.plug_in(node)
            node.start_containerd()
        wait_for_containerd(nodes)

    def _wait_until_open(self, namespace: str) -> None:
        """The controllers give each namespace an account, with a token, for its pods."""

        def has_account() -> bool:
            with contextlib.suppress(Refused):
                account = self._api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
                return bool(account.get("secrets"))
            return False

        wait_until(has_account, f"pods may be made in {namespace}", self._ended)

    def _readiness(self, node: str) -> tuple[str, str]:
        """Status of the condition Ready, and when the kubelet last reported it."""
        try:
            found = self._api.get(f"/api/v1/nodes/{node}")
        except Refused:
            return "", ""
        conditions = (c for c in found["status"].get("conditions", ()) if c["type"] == "Ready")
        return next(((c["status"], c["lastHeartbeatTime"]) for c in conditions), ("", ""))

    def _ended(self) -> str:
        machines = (self._control.machine, *(node.machine for node in self._nodes.values()))
        return next((found for machine in machines if (found := machine.ended())), "")

    def _off(self) -> None:
        for node in self._nodes.values():
            node.machine.off()
        self._control.machine.off()


def _load(node: Node) -> None:
    node.add(one_program(PAUSE_IMAGE, Path(build.programs()["catatonit"]), "-P"))
    with debian.base_tar() as layer:
        node.add(Image(BASE_IMAGE, [layer], {"Env": [f"PATH={_PATH}"], "Cmd": ["/bin/sh"]}))


@contextmanager
def started(nodes: int = 2) -> Iterator[Bed]:
    """A new bed, ready. Raises NoKubernetes with the last words of what did not come up."""
    programs = build.programs()
    sweep()
    home = Home.claim()
    try:
        control = ControlPlane(home, programs)
        machines = [Node(number + 1, home, programs, control.machine) for number in range(nodes)]
        for node in machines:
            node.write_files(control.authority.certificate)
            control.admit(node)
        with KubeApi(control.admin) as api:
            bed = Bed(home, control, machines, api)
            try:
                bed._start()
                yield bed
            except NoKubernetes as error:
                raise NoKubernetes(f"{error}\n{bed.last_words()}") from error
            finally:
                bed._off()
    finally:
        home.remove()
    left = remaining(home.name)
    assert not left, f"the bed leaves {left}"
