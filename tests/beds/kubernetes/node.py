"""A node of the bed: a machine with containerd and a kubelet, as clusters have them today (CRI, not Docker)."""

import json
import struct
import subprocess
import sysconfig
from pathlib import Path

from beds.kubernetes.build import Programs
from beds.kubernetes.images import Image
from beds.kubernetes.machines import Home, Machine, wait_until

PAUSE_IMAGE = "docker.io/library/trainyard-test-pause:bed"
DNS_ADDRESS, DOMAIN = "10.96.0.10", "cluster.local"
WITH_PACKAGES = "with-packages"
"""RuntimeClass whose containers have the Python packages of the tests: an image with them would be half a gigabyte."""

ZONES_H = (5.5, -3.5)
"""Offsets of the nodes' clocks from UTC, in turn: containerd stamps the lines of logs in the zone of its node."""

_SOCKET = "/run/containerd/containerd.sock"
_CONTAINERD = f"""
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/run/programs/cni"
  conf_dir = "/run/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "/run/programs/bin/runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{WITH_PACKAGES}]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "SPEC"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{WITH_PACKAGES}.options]
  BinaryName = "/run/programs/bin/runc"
"""


class Node:
    """The machine, its place in the network, and what runs on it before any pod."""

    def __init__(self, number: int, home: Home, programs: Programs, first: Machine) -> None:
        self.name = f"node-{number}"
        self.address = f"10.77.0.{10 + number}"
        self.pod_network = f"10.244.{number}.0/24"
        self._programs = programs
        self._files = home.directory / self.name
        self._zone = self._files / "zone"
        self.machine = Machine(self.name, home, programs, first, self._zone)
        self._offset_s = round(3600 * ZONES_H[(number - 1) % len(ZONES_H)])
        self._home = home

    def write_files(self, authority: Path) -> None:
        """Its configuration; in a directory that also gets its certificate and kubeconfig."""
        (self._files / "cni").mkdir(parents=True)
        self._zone.write_bytes(_time_zone(self._offset_s))
        spec = self._files / "with-packages.json"
        spec.write_text(json.dumps(_with_packages(self._programs["ctr"])))
        (self._files / "containerd.toml").write_text(_CONTAINERD.replace("SPEC", str(spec)))
        (self._files / "cni" / "10-bridge.conflist").write_text(json.dumps(self._cni()))
        (self._files / "kubelet.json").write_text(json.dumps(self._kubelet(authority)))
        (self._files / "resolv.conf").write_text("")
        for hierarchy in self._home.cgroups():
            (hierarchy / self.name).mkdir(parents=True)

    def start_containerd(self) -> None:
        self.machine.run_inside("cp", "-r", str(self._files / "cni"), "/run/cni")
        self.machine.start("containerd", "--config", str(self._files / "containerd.toml"))

    def containerd_answers(self) -> bool:
        with self.machine.open("ctr", "version") as asked:
            asked.communicate()
        return asked.returncode == 0

    def add(self, image: Image) -> None:
        with self.machine.open("ctr", "-n", "k8s.io", "images", "import", "-", stdin=-1) as loading:
            assert loading.stdin is not None
            image.write(loading.stdin)
            answer, _ = loading.communicate()
        assert loading.returncode == 0, f"{self.name} does not load {image.name}: {answer.decode()}"

    def start_kubelet(self) -> None:
        self.machine.start(
            "kubelet",
            *("--config", str(self._files / "kubelet.json")),
            *("--kubeconfig", str(self._files / "kubeconfig")),
            *("--container-runtime=remote", f"--container-runtime-endpoint=unix://{_SOCKET}"),
            *(f"--hostname-override={self.name}", f"--node-ip={self.address}"),
        )

    def _cni(self) -> dict[str, object]:
        addresses = {"type": "host-local", "ranges": [[{"subnet": self.pod_network}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{**bridge, "ipam": addresses}]}

    def _kubelet(self, authority: Path) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(authority)},
            },
            "authorization": {"mode": "AlwaysAllow"},  # whoever has a certificate of the bed
            "tlsCertFile": str(self._files / "node.crt"),
            "tlsPrivateKeyFile": str(self._files / "node.key"),
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": DOMAIN,
            "resolvConf": str(self._files / "resolv.conf"),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._home.name}/{self.name}",
            "enforceNodeAllocatable": [],
            "failSwapOn": False,
            "oomScoreAdj": 0,
            "makeIPTablesUtilChains": False,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "evictionHard": {"memory.available": "1Mi"},  # the disk is the host's, and shared
            "imageGCHighThresholdPercent": 100,
            "serializeImagePulls": False,
            "containerLogMaxSize": "2Mi",  # looked at every ten seconds
            "containerLogMaxFiles": 2,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
        }


def _time_zone(offset_s: int) -> bytes:
    """The file of a zone with one offset (RFC 8536, version 1): hosts need not have tzdata."""
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    return b"TZif" + bytes(16) + counts + struct.pack(">lBB", offset_s, 0, 0) + b"BED\0"


def _with_packages(ctr: str) -> object:
    """A container as any other, with this environment's packages where Debian's Python looks for those that are not
    Debian's."""
    made = subprocess.run([ctr, "oci", "spec"], capture_output=True, check=True, timeout=60)
    spec = json.loads(made.stdout)
    version = sysconfig.get_python_version()
    mount = {
        "destination": f"/usr/local/lib/python{version}/dist-packages",
        "type": "bind",
        "source": sysconfig.get_path("purelib"),
        "options": ["rbind", "ro"],
    }
    return {**spec, "mounts": [*spec["mounts"], mount]}


def wait_for_containerd(nodes: list[Node]) -> None:
    for node in nodes:
        wait_until(node.containerd_answers, f"containerd of {node.name}", node.machine.ended)
