"""The control plane: etcd, API server, controller manager, scheduler and DNS, on the machine that joins all nodes."""

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from beds.kubernetes import dns, forward
from beds.kubernetes.build import Programs
from beds.kubernetes.certificates import Authority
from beds.kubernetes.kube_api import KubeApi
from beds.kubernetes.machines import Home, Machine, wait_until
from beds.kubernetes.node import DNS_ADDRESS, DOMAIN, Node

_ADDRESS, _HARDWARE_ADDRESS = "10.77.0.1", "02:00:00:00:00:01"
_SERVICES, _KUBERNETES_SERVICE = "10.96.0.0/16", "10.96.0.1"
_INSIDE = f"https://{_ADDRESS}"
_ETCD = "http://127.0.0.1:2379"
_NODE_GRACE_S = 10


class ControlPlane:
    """Two addresses of Services are its own, so that they answer without kube-proxy: that of the API and of DNS."""

    def __init__(self, home: Home, programs: Programs) -> None:
        self.machine = Machine("control", home, programs)
        self.authority = Authority(home.directory)
        self._directory = home.directory
        self._door = socket.socket()
        self._door.bind(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._door.getsockname()[1]}"
        hosts = ("127.0.0.1", "localhost", _ADDRESS, _KUBERNETES_SERVICE, "kubernetes", "kubernetes.default")
        names = (f"kubernetes.default.svc{end}" for end in ("", f".{DOMAIN}"))
        self.authority.issue("api-server", "kube-apiserver", hosts=(*hosts, *names))
        self.authority.issue("kubelet-client", "kube-apiserver-kubelet-client", "system:masters")
        self.authority.key("service-accounts")
        for program in ("controller-manager", "scheduler"):
            self._client(program, f"system:kube-{program}", _INSIDE)
        self.admin = self._client("admin", "admin", self.url, "system:masters")

    def boot(self) -> None:
        """The machine and its network, and the door to it from outside."""
        self.machine.boot()
        # With an address of its own; else it changes with the nodes, which then cannot reach it for a while.
        self.machine.link("link", "add", "nodes", "address", _HARDWARE_ADDRESS, "type", "bridge")
        for address in (f"{_ADDRESS}/24", f"{_KUBERNETES_SERVICE}/32", f"{DNS_ADDRESS}/32"):
            self.machine.link("address", "add", address, "dev", "nodes")
        self.machine.link("link", "set", "nodes", "up")
        self._door.listen(128)
        self._forward("door-in", self._door, self.machine.network, _ADDRESS, 443)

    @contextmanager
    def door_out(self, port: int) -> Iterator[str]:
        name = f"door-out-{port}"
        door = forward.listen_in(self.machine.network, _ADDRESS)
        address = f"{_ADDRESS}:{door.getsockname()[1]}"
        self._forward(name, door, "/proc/self/ns/net", "127.0.0.1", port)
        try:
            yield address
        finally:
            self.machine.stop_outside(name)

    def plug_in(self, node: Node) -> None:
        """A link to the node, and the way to its pods."""
        machine = node.machine
        self.machine.link(*("link", "add", node.name, "type", "veth", "peer", "name", "eth0", "netns", machine.network))
        self.machine.link("link", "set", node.name, "master", "nodes", "up")
        self.machine.link("route", "replace", node.pod_network, "via", node.address)
        machine.link("address", "add", f"{node.address}/24", "dev", "eth0")
        machine.link("link", "set", "eth0", "up")
        machine.link("route", "add", "default", "via", _ADDRESS)

    def unplug(self, node: Node) -> None:
        """Remove the link of a machine that is to be switched off: the kernel would do that only some time later."""
        self.machine.link("link", "delete", node.name)

    def admit(self, node: Node) -> None:
        """Give it what it shows to the API server, and the API server to its kubelet."""
        name = f"system:node:{node.name}"
        self.authority.issue(f"{node.name}/node", name, "system:nodes", (node.name, node.address))
        self._kubeconfig(self._directory / node.name / "kubeconfig", f"{node.name}/node", _INSIDE)

    def start(self) -> None:
        self.start_etcd()
        self.start_api_server()

    def start_etcd(self) -> None:
        self.machine.start(
            "etcd",
            *("--data-dir=/var/lib/etcd", "--unsafe-no-fsync", "--log-level=warn"),
            *(f"--listen-client-urls={_ETCD}", f"--advertise-client-urls={_ETCD}"),
            *("--listen-peer-urls=http://127.0.0.1:2380",),
        )

    def start_api_server(self) -> None:
        file = {name: str(self._directory / name) for name in ("ca.crt", "api-server", "kubelet-client")}
        accounts = str(self._directory / "service-accounts")
        self.machine.start(
            "kube-apiserver",
            *(f"--etcd-servers={_ETCD}", f"--advertise-address={_ADDRESS}", "--bind-address=0.0.0.0"),
            *("--secure-port=443", f"--service-cluster-ip-range={_SERVICES}"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            *(f"--client-ca-file={file['ca.crt']}", "--allow-privileged=true", "--profiling=false"),
            *(f"--tls-cert-file={file['api-server']}.crt", f"--tls-private-key-file={file['api-server']}.key"),
            *(f"--kubelet-certificate-authority={file['ca.crt']}",),
            *(f"--kubelet-client-certificate={file['kubelet-client']}.crt",),
            *(f"--kubelet-client-key={file['kubelet-client']}.key",),
            *("--kubelet-preferred-address-types=InternalIP",),
            *("--service-account-issuer=https://kubernetes.default.svc",),
            *(f"--service-account-key-file={accounts}.pub",),
            *(f"--service-account-signing-key-file={accounts}.key",),
        )

    def start_the_rest(self) -> None:
        """Once the API server answers."""
        self.machine.start(
            "kube-controller-manager",
            *(f"--kubeconfig={self._directory / 'controller-manager.kubeconfig'}",),
            *("--use-service-account-credentials=true", "--leader-elect=false", "--profiling=false"),
            *(f"--service-account-private-key-file={self._directory / 'service-accounts.key'}",),
            *(f"--root-ca-file={self.authority.certificate}", "--port=0", "--secure-port=0"),
            *("--node-monitor-period=1s", f"--node-monitor-grace-period={_NODE_GRACE_S}s"),
        )
        self.machine.start(
            "kube-scheduler",
            *(f"--kubeconfig={self._directory / 'scheduler.kubeconfig'}",),
            *("--leader-elect=false", "--profiling=false", "--port=0", "--secure-port=0"),
        )
        files = (str(self._directory / name) for name in ("ca.crt", "admin.crt", "admin.key"))
        answering = [sys.executable, dns.__file__, DNS_ADDRESS, _INSIDE, *files]
        self.machine.start_outside("dns", answering, inside=("net",))

    def wait_until_ready(self, api: KubeApi) -> None:
        wait_until(api.is_ready, "the API server is ready", self.machine.ended)

    def kubeconfig_with_token(self, name: str, token: str, namespace: str) -> Path:
        """From outside."""
        path = self._directory / f"{name}.kubeconfig"
        self._write(path, {"token": token}, self.url, namespace)
        return path

    def _forward(self, name: str, door: socket.socket, network: str, host: str, port: int) -> None:
        """From the door, which is closed here, to an address in the network."""
        command = [sys.executable, forward.__file__, str(door.fileno()), network, host, str(port)]
        self.machine.start_outside(name, command, fd=door.fileno())
        door.close()

    def _client(self, name: str, user: str, url: str, group: str = "") -> Path:
        self.authority.issue(name, user, group)
        path = self._directory / f"{name}.kubeconfig"
        self._kubeconfig(path, name, url)
        return path

    def _kubeconfig(self, path: Path, certificate: str, url: str) -> None:
        file = self._directory / certificate
        self._write(path, {"client-certificate": f"{file}.crt", "client-key": f"{file}.key"}, url)

    def _write(self, path: Path, user: dict[str, str], url: str, namespace: str = "default") -> None:
        cluster = {"server": url, "certificate-authority": str(self.authority.certificate)}
        context = {"cluster": "bed", "user": "bed", "namespace": namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "bed", "cluster": cluster}],
            "users": [{"name": "bed", "user": user}],
            "contexts": [{"name": "bed", "context": context}],
            "current-context": "bed",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))
