"""Package jobs on a cluster: the template over two nodes, packages by ConfigMap and by link."""

import json
import os
import tarfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.kubernetes.kube_api import KubeApi
from beds.kubernetes.node import WITH_PACKAGES
from beds.token_files import long_token
from beds.waiting import until
from e2e.harness import RemoteService
from e2e.test_training import check_trained, predict, template
from support.addresses import free_ports
from trainyard_agent.engines.kubernetes.api.access import RULES
from trainyard_cli.submission.upload import ensure_bucket
from trainyard_protocol.net.loopback import IPV4, listen
from trainyard_storage.api import LocalBackend, StorageApi
from trainyard_storage.app import StorageApp
from trainyard_storage.server import BACKLOG, StorageServer

pytestmark = pytest.mark.e2e

SECRET = "7" * 64


class ClusterService(RemoteService):
    """A server, an agent of the bed, and gs:// for this machine and for pods."""

    def __init__(self, root: Path, bed: Bed, stack: ExitStack) -> None:
        unprivileged = {"family": "site", "vcpus": 1, "memoryGb": 2, "kubernetes": {"runAsUser": 1000}}
        types = {"kubernetes": {"runtimeClassName": WITH_PACKAGES}, "machineTypes": {"plain-1": unprivileged}}
        super().__init__(root, machine_types=types)
        stack.enter_context(self.ending())
        name = f"packages-{os.getpid()}"
        self.namespace = f"/api/v1/namespaces/{name}"
        self.api = stack.enter_context(KubeApi(bed.admin))
        (storage,) = free_ports(1)
        self.emulator = f"http://127.0.0.1:{storage}/{SECRET}"
        ports = (int(self.url.rpartition(":")[2]), storage)
        pods, buckets = (stack.enter_context(bed.door_to_host(port)) for port in ports)
        stack.enter_context(bucket_server(root / "gcs", storage, buckets.partition(":")[0]))
        images = {"images": {"base": {"image": BASE_IMAGE}}, "versions": {"*": {"cpu": "base"}}}
        (root / "runtimes.yaml").write_text(yaml.safe_dump(images))
        self.agent(
            *("--name", "bed", "--runtime", "kubernetes", "--pool", "2x2x8"),
            *("--kubeconfig", str(bed.with_role(name, RULES)), "--runtimes", str(root / "runtimes.yaml")),
            *("--server-url-for-pods", f"http://{pods}"),
            *("--replica-env", f"STORAGE_EMULATOR_HOST=http://{buckets}/{SECRET}"),
        )
        until(lambda: "bed" in self.ok("agents", "list"), "the agent")

    def page(self, path: str) -> str:
        headers = {"Authorization": f"Bearer {long_token('admin')}"}
        return httpx.get(self.url + path, headers=headers, trust_env=False, timeout=60).raise_for_status().text

    def remaining(self) -> list[str]:
        """Objects of runs in the namespace."""
        return [
            f"{kind} {one['metadata']['name']}"
            for kind in ("pods", "services", "configmaps", "secrets")
            for one in self.api.get(f"{self.namespace}/{kind}")["items"]
            if "trainyard.dev/run" in (one["metadata"].get("labels") or {})
        ]


@contextmanager
def bucket_server(directory: Path, port: int, name: str) -> Iterator[None]:
    """The storage emulator, which also answers to this name."""
    app = StorageApp(LocalBackend(StorageApi(directory)), SECRET)
    app.add_name(name)
    storage = StorageServer(app, port)
    thread = threading.Thread(target=storage.run, args=(listen(IPV4, port, BACKLOG),))
    thread.start()
    until(lambda: storage.started, "the storage")
    try:
        yield
    finally:
        storage.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def cluster(kubernetes: Bed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterService]:
    with ExitStack() as stack:
        service = ClusterService(tmp_path_factory.mktemp("cluster"), kubernetes, stack)
        yield service
        until(lambda: not service.remaining(), f"nothing to be left: {service.remaining()}")
        assert "Traceback" not in service.log_of("agent")


def test_template_trains_over_two_nodes_while_the_next_job_waits(cluster: ClusterService) -> None:
    copy = template(cluster, workerCount=1, masterType="local-2", workerType="local-2")  # each takes a node
    job_dir = "gs://models/digits"
    ensure_bucket(job_dir, cluster.emulator, print)
    words = ("--config", "config.yaml", "--job-dir", job_dir, "--", "--epochs", "5")
    cluster.ok("jobs", "submit", "training", "digits", *words, cwd=copy)
    cluster.ok("jobs", "submit", "training", "next", *words, cwd=copy)
    until(lambda: "digits" in cluster.ok("jobs", "why", "next"), "the job that has the room")
    cluster.ok("jobs", "cancel", "next")
    done = cluster.run("jobs", "stream-logs", "digits", timeout=400)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output

    check_trained(output, 2)
    assert "Its replicas run in a Kubernetes cluster" in output
    predict(cluster, job_dir, STORAGE_EMULATOR_HOST=cluster.emulator)
    explained = json.loads(cluster.ok("jobs", "explain", "digits", "worker-replica-0", "-o", "json"))
    addresses = json.loads(explained["environment"]["TF_CONFIG"])["cluster"]
    assert {kind: len(several) for kind, several in addresses.items()} == {"chief": 1, "worker": 1}
    page = cluster.page("/projects/local/jobs/digits")
    assert all(word in page for word in ("SUCCEEDED", "worker-replica-0", "in a Kubernetes cluster"))
    assert "It does not wait" in cluster.ok("jobs", "why", "digits")


@pytest.mark.long
def test_package_beyond_a_config_map_comes_by_a_link_also_to_an_unprivileged_user(cluster: ClusterService) -> None:
    program = cluster.program(
        "import os, pathlib, shutil, sys\n"
        "content = pathlib.Path(__file__).with_name('data.py').read_bytes()\n"
        "print(len(content) > 1_000_000, os.getuid(), shutil.which('python'), sys.prefix)"
    )
    (program / "data.py").write_text(f"DATA = '{os.urandom(600_000).hex()}'\n")
    config = str(cluster.config(scaleTier="CUSTOM", masterType="plain-1"))
    output = cluster.train("large", "--config", config, "--package-path", "prog")
    assert "True 1000 /opt/trainyard/environment/bin/python /opt/trainyard/environment" in output


@pytest.mark.long
def test_job_is_cancelled_while_its_package_is_installed(cluster: ClusterService) -> None:
    source = cluster.work / "slow-1.0"
    source.mkdir()
    (source / "setup.py").write_text("import time; time.sleep(1000)")
    with tarfile.open(cluster.work / "slow-1.0.tar.gz", "w:gz") as package:
        package.add(source, "slow-1.0")
    config = str(cluster.config(scaleTier="CUSTOM", masterType="local-1"))
    cluster.ok("jobs", "submit", "training", "slow", "--config", config, "--packages", "slow-1.0.tar.gz")
    until(lambda: "installing slow-1.0.tar.gz" in cluster.ok("jobs", "why", "slow"), "the installation")
    cluster.ok("jobs", "cancel", "slow")
    cluster.wait_for("slow", "CANCELLED")
