"""The bed is a cluster, breaks where it is asked to, and leaves nothing."""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.kubernetes.bed import BASE_IMAGE, Bed
from beds.kubernetes.kube_api import KubeApi, Object, Refused
from beds.kubernetes.machines import remaining, started_by, sweep, wait_until

MEET = """
import socket, sys, time

other, code = sys.argv[1:]
listening = socket.create_server(("", 2222))
while True:
    try:
        peer = socket.create_connection((other, 2222), 5)
        break
    except OSError as error:
        print(f"not yet: {error}", file=sys.stderr, flush=True)
        time.sleep(0.1)
listening.accept()
print(f"{socket.gethostname()} met {other}")
sys.exit(int(code))
"""


@pytest.fixture
def api(kubernetes: Bed) -> Iterator[KubeApi]:
    with KubeApi(kubernetes.admin) as api:
        yield api


@pytest.fixture
def namespace(kubernetes: Bed, api: KubeApi) -> Iterator[str]:
    """The path of a namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    path = f"/api/v1/namespaces/{name}"
    kubernetes.add_namespace(name)
    yield path
    for pod in api.get(f"{path}/pods")["items"]:
        api.delete(f"{path}/pods/{pod['metadata']['name']}", gracePeriodSeconds="0")
    api.delete(path)


def pod(name: str, *command: str, **spec: object) -> Object:
    container = {"name": "main", "image": BASE_IMAGE, "command": list(command)}
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
    return {"metadata": {"name": name, "labels": {"gang": "meeting"}}, "spec": whole}


def ended(api: KubeApi, path: str) -> Object:
    """The pod, once it has."""
    wait_until(lambda: api.get(path)["status"]["phase"] in ("Succeeded", "Failed"), f"{path} ends")
    return api.get(path)


def exit_code(found: Object) -> int:
    code: int = found["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
    return code


def test_pods_on_two_nodes_meet_by_the_names_of_a_headless_service(api: KubeApi, namespace: str) -> None:
    selector = {"gang": "meeting"}
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    api.create(f"{namespace}/services", {"metadata": {"name": "gang"}, "spec": service})
    apart = {"labelSelector": {"matchLabels": selector}, "topologyKey": "kubernetes.io/hostname"}
    spread = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}}
    for own, other, code in (("worker-0", "worker-1", "0"), ("worker-1", "worker-0", "7")):
        command = ("python3", "-c", MEET, f"{other}.gang", code)
        meeting = pod(own, *command, hostname=own, subdomain="gang", affinity=spread)
        api.create(f"{namespace}/pods", meeting)
    found = [ended(api, f"{namespace}/pods/worker-{number}") for number in (0, 1)]
    assert {one["spec"]["nodeName"] for one in found} == {"node-1", "node-2"}
    assert [exit_code(one) for one in found] == [0, 7]
    assert "worker-1 met worker-0.gang\n" in api.text(f"{namespace}/pods/worker-1/log")


def test_pod_reaches_the_host_through_a_door_alone(kubernetes: Bed, api: KubeApi, namespace: str) -> None:
    call = "import socket, sys; print(socket.create_connection((sys.argv[1], int(sys.argv[2])), 9).recv(9))"
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        with kubernetes.door_to_host(port) as address:
            api.create(f"{namespace}/pods", pod("caller", "python3", "-c", call, *address.split(":")))
            service.settimeout(60)
            connection, _ = service.accept()
            with connection:
                connection.sendall(b"hello")
            assert exit_code(ended(api, f"{namespace}/pods/caller")) == 0
        api.create(f"{namespace}/pods", pod("late", "python3", "-c", call, *address.split(":")))
        assert exit_code(ended(api, f"{namespace}/pods/late")) == 1
    assert api.text(f"{namespace}/pods/caller/log") == "b'hello'\n"
    assert "Connection refused" in api.text(f"{namespace}/pods/late/log")


def test_role_allows_what_its_rules_list_and_in_its_namespace(kubernetes: Bed, api: KubeApi) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    with KubeApi(kubernetes.with_role("reader", rules)) as reader:
        assert reader.get("/api/v1/namespaces/reader/pods")["items"] == []
        for path in ("namespaces/reader/secrets", "namespaces/default/pods", "nodes"):
            with pytest.raises(Refused) as refused:
                reader.get(f"/api/v1/{path}")
            assert refused.value.code == 403
    api.delete("/api/v1/namespaces/reader")


def test_pod_ends_while_no_api_server_is_there_and_its_code_is_read(
    kubernetes: Bed, api: KubeApi, namespace: str
) -> None:
    path = f"{namespace}/pods/lonely"
    api.create(f"{namespace}/pods", pod("lonely", "sh", "-c", "echo begins; sleep 2; exit 3"))
    wait_until(lambda: api.get(path)["status"]["phase"] == "Running", "the pod runs")
    with kubernetes.without_api_server():
        assert not api.is_ready()
    assert exit_code(ended(api, path)) == 3
    assert api.text(f"{path}/log") == "begins\n"


@pytest.mark.long
def test_cut_node_comes_back_with_its_pods_and_a_killed_one_with_their_ends(
    kubernetes: Bed, api: KubeApi, namespace: str
) -> None:
    patient = [{"operator": "Exists"}]  # nobody evicts it
    runs = pod("runs", "sleep", "600", nodeName="node-2", tolerations=patient)
    created = api.create(f"{namespace}/pods", runs)["metadata"]["uid"]
    path = f"{namespace}/pods/runs"
    wait_until(lambda: api.get(path)["status"]["phase"] == "Running", "the pod runs")
    with kubernetes.cut("node-2"):
        kubernetes.wait_until_ready("node-2", ready=False)
        kubernetes.wait_until_ready("node-1")
    kubernetes.wait_until_ready("node-2")
    found = api.get(path)
    assert (found["metadata"]["uid"], found["status"]["phase"]) == (created, "Running")
    kubernetes.kill("node-2")
    kubernetes.boot("node-2")
    assert exit_code(ended(api, path)) == 255  # not known: nobody was there to see it


def test_bed_of_a_killed_process_is_swept_and_one_in_use_is_not(kubernetes: Bed) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    killed = subprocess.Popen([sys.executable, "-m", "kubernetes_bed"], env=environment)

    def its_nodes_have_booted() -> bool:
        return Path("/tmp", started_by(killed.pid) or "none", "node-2.containerd.log").exists()

    try:
        wait_until(its_nodes_have_booted, "its nodes have booted", lambda: str(killed.poll() or ""))
        name = started_by(killed.pid)
        kinds = {what.split()[0] for what in remaining(name)}
    finally:
        killed.kill()
        killed.wait()
    assert kinds == {"process", "cgroup", "directory"}
    wait_until(lambda: not any(what.startswith("process") for what in remaining(name)), "its processes end")
    sweep()
    assert remaining(name) == []
    for node in kubernetes.nodes:
        kubernetes.wait_until_ready(node)
