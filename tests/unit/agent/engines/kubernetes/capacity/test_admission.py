"""Admission of gangs: what is sent to Kueue, and how its answers are read.

The statuses of Workloads are those of Kueue's documentation.
"""

import ssl
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from beds.fake_cluster import NAMESPACE, FakeCluster, Fault, fake_cluster
from beds.open_engines import agent_settings
from contract.runtimes import runtime_labs
from trainyard_agent.engines.contract import SettingsRefused
from trainyard_agent.engines.kubernetes import engine as kubernetes_engine
from trainyard_agent.engines.kubernetes.api.client import KubeDown, KubeRefused
from trainyard_agent.engines.kubernetes.api.connection import KubeConnection
from trainyard_agent.engines.kubernetes.capacity import admission
from trainyard_agent.engines.kubernetes.capacity.admission import LocalQueue, NotAdmitted, choose, waits_of
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.engines.kubernetes.runtime import KubernetesRuntime
from trainyard_agent.opening import open_engines
from trainyard_agent.runtimes.base import Launch, StartFailed
from trainyard_agent.server_client import ServerClient
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.resources import Capacity, Pool
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.agents import AgentInfo
from trainyard_protocol.wire.sync import RunOrder
from unit.agent.stub_server import agent_info

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN, NAME = "1" * 32, "ty-111111111111"
OWNER = objects.PodOwner("agent")
KUEUE = {"kueue.x-k8s.io/v1beta2": ["workloads"]}
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
WORKLOADS = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/workloads"
QUEUES = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{NAMESPACE}/localqueues"
FULL = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 2 more needed"


def order(*tasks: str, priority: int = 0) -> RunOrder:
    return runtime_labs.order(RUN, *tasks).model_copy(update={"priority": priority})


def launch(task: str) -> Launch:
    return Launch(task, (), {}, (), 0, image="i")


def condition(kind: str, status: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def workload(*conditions: dict[str, str], active: bool = True, **status: object) -> dict[str, Any]:
    return {
        "metadata": {"name": NAME},
        "spec": {"queueName": "team-a", "active": active},
        "status": {"conditions": list(conditions), **status},
    }


RESERVED = condition("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue cluster-queue")
WAITS = {
    "others are before it": workload(),
    FULL: workload(condition("QuotaReserved", "False", "Pending", FULL)),
    "LocalQueue team-a doesn't exist": workload(
        condition("QuotaReserved", "False", "Inadmissible", "LocalQueue team-a doesn't exist")
    ),
    "quota is reserved, admission checks: dws-prov Pending (waiting for nodes)": workload(
        RESERVED,
        admissionChecks=[
            {"name": "dws-prov", "state": "Pending", "message": "waiting for nodes"},
            {"name": "other", "state": "Ready", "message": ""},
        ],
    ),
    "The workload is deactivated": workload(
        condition("QuotaReserved", "False", "Pending", "The workload is deactivated"),
        condition("Evicted", "True", "Deactivated", "The workload is deactivated"),
        active=False,
    ),
    "": workload(RESERVED, condition("Admitted", "True", "Admitted", "The workload is admitted")),
}


def test_workload_says_why_it_is_not_admitted() -> None:
    assert [waits_of(found) for found in WAITS.values()] == list(WAITS)


def test_discovery_that_is_forbidden_finds_nothing() -> None:
    with fake_cluster() as api, closing(api.client()) as client:
        api.groups = KUEUE
        api.fail("GET", "/kueue.x-k8s.io/v1beta2", Fault(403))
        with pytest.raises(NotAdmitted, match="the cluster has no Kueue"):
            choose(client, "team-a", {})


async def test_agent_of_a_cluster_offers_the_queue_that_its_options_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--server", "http://x", "--token-file", "t", "--state-dir", str(tmp_path), "--runtime", "kubernetes"]
    pools = Capacity.of_pools(Pool(nodes=1, vcpus=1, memory_bytes=1))
    info = agent_info(runtime="process", capacity=pools)
    with fake_cluster() as api:
        connection = KubeConnection(api.url, ssl.create_default_context(), None, NAMESPACE)
        monkeypatch.setattr(kubernetes_engine, "connect", lambda *_: connection)
        async with ServerClient("http://x", "t", "") as server:

            def opened(*more: str) -> AgentInfo:
                with open_engines(agent_settings(*words, *more), "a", server) as runtimes:
                    return runtimes.info(info)

            plain = opened("--pool", "1x1x1")
            assert plain.in_flight == 0
            with pytest.raises(SettingsRefused, match="the cluster has no Kueue"):
                opened("--pool", "1x1x1", "--local-queue", "team-a")
            api.groups = KUEUE
            api.create(QUEUES, {"metadata": {"name": "team-a"}})
            api.create(QUEUES, {"metadata": {"name": "shared"}})
            missing = f"--local-queue b: the namespace {NAMESPACE} has no such LocalQueue. There are: shared, team-a."
            with pytest.raises(SettingsRefused, match=missing):
                opened("--pool", "1x1x1", "--local-queue", "b")
            api.fail("GET", f"{QUEUES}/b", Fault(403))
            assert opened("--pool", "1x1x1", "--local-queue", "b").in_flight
            found = opened("--pool", "1x1x1", "--local-queue", "team-a", "--in-flight", "7")
            assert found.in_flight == 7
            (offer,) = (one for one in found.runtimes if one.name == "kubernetes")
            assert offer.about.endswith(f"namespace {NAMESPACE}, LocalQueue team-a of Kueue")


class Lab:
    """A runtime on a fake cluster. `webhook` is called with each pod that is created, as those of Kueue are."""

    def __init__(self, api: FakeCluster, directory: Path, queue: str = "") -> None:
        self.api, self.client = api, api.client()
        if queue:
            api.create(QUEUES, {"metadata": {"name": queue}})
        self.admission = choose(self.client, queue, {0: "low", 100: "high", 500: "highest"})
        self.runtime = KubernetesRuntime(directory, self.client, OWNER, self.admission)

    def start(self, *tasks: str, priority: int = 0) -> None:
        self.runtime.place(order(*tasks, priority=priority))
        self.runtime.start(RUN, [launch(task) for task in tasks])

    def close(self) -> None:
        self.runtime.close()
        self.client.close()


def kueue_webhook(path: str, body: dict[str, Any]) -> None:
    """Hold a pod that is in a queue, as Kueue's webhook does."""
    if path.endswith("/pods") and admission.QUEUE in body["metadata"]["labels"]:
        body["metadata"]["labels"][admission.MANAGED] = "true"
        body["metadata"]["finalizers"].append(admission.MANAGED)
        body["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]


def lab_on(api: FakeCluster, directory: Path, queue: str = "") -> closing[Lab]:
    return closing(Lab(api, directory, queue))


def test_run_in_a_queue_is_a_pod_group_that_waits_with_kueues_words_and_is_removed(tmp_path: Path) -> None:
    with fake_cluster() as api:
        api.groups, api.webhook = KUEUE, kueue_webhook
        with lab_on(api, tmp_path, "team-a") as lab:
            lab.start(CHIEF, WORKER, priority=120)
            for task in (CHIEF, WORKER):
                metadata = api.objects[f"{PODS}/{objects.pod_name(RUN, task)}"]["metadata"]
                kueues = {
                    name.removeprefix(admission.KUEUE): value
                    for name, value in {**metadata["labels"], **metadata["annotations"]}.items()
                    if name.startswith(admission.KUEUE)
                }
                assert kueues == {
                    "queue-name": "team-a",
                    "pod-group-name": NAME,
                    "pod-group-total-count": "2",
                    "retriable-in-group": "false",
                    "priority-class": "high",
                    "managed": "true",
                }
            reports = lab.runtime.observe(RUN)
            assert {(one.state, one.waits) for one in reports} == {
                (ReplicaState.PENDING, "in the LocalQueue team-a: Kueue has made no Workload of it yet")
            }
            assert isinstance(lab.admission, LocalQueue)
            lab.admission.clock = lambda: 1e9
            api.create(WORKLOADS, WAITS[FULL])
            assert {one.waits for one in lab.runtime.observe(RUN)} == {f"in the LocalQueue team-a: {FULL}"}

            # One is let go, and has no room; what it waits for are the scheduler's words.
            unscheduled = condition("PodScheduled", "False", "Unschedulable", "0/2 nodes are available")
            path = f"{PODS}/{objects.pod_name(RUN, CHIEF)}"
            api.patch(path, {"spec": {"schedulingGates": None}, "status": {"conditions": [unscheduled]}})

            def states() -> dict[str, tuple[ReplicaState, str]]:
                return {one.task: (one.state, one.waits) for one in lab.runtime.observe(RUN)}

            while states()[CHIEF] != (ReplicaState.STARTING, "0/2 nodes are available"):
                pass
            assert states()[WORKER][0] is ReplicaState.PENDING

            # Kueue holds pods of a group that never ran for ever: they go with their run.
            lab.runtime.remove(RUN)
            assert api.names("pods") == []


def test_reasons_of_kueue_that_cannot_be_read_hold_nothing_up() -> None:
    gated = {"metadata": {"labels": {}}, "spec": {"schedulingGates": [{"name": "g"}]}}
    answers: list[Callable[[], list[dict[str, Any]]]] = []

    def fail(error: Exception) -> Callable[[], list[dict[str, Any]]]:
        def answer() -> list[dict[str, Any]]:
            raise error

        return answer

    queue = LocalQueue("", "q", {}, lambda: answers.pop(0)(), clock=iter(range(0, 1000, 10)).__next__)
    answers[:] = [
        lambda: [WAITS[FULL]],
        fail(KubeDown("away")),
        fail(KubeRefused(403, 'workloads is forbidden: User "a" cannot list')),
    ]
    waits = [queue.waits(RUN, gated).partition(": ")[2] for _ in range(3)]
    assert waits == [FULL, FULL, 'why is not known (workloads is forbidden: User "a" cannot list)']


def test_queue_that_is_not_there_refuses_a_run_once_kueue_has_said_so_for_a_while() -> None:
    """Kueue may only just have started: then it knows no queue yet."""
    gated = {"metadata": {"labels": {}}, "spec": {"schedulingGates": [{"name": "g"}]}}
    missing = "LocalQueue team-a doesn't exist"
    workload = {"metadata": {"name": "ty-111111111111"}, "spec": {}}

    now, message = 0.0, missing

    def workloads() -> list[dict[str, Any]]:
        condition = {"type": "QuotaReserved", "status": "False", "message": message}
        return [{**workload, "status": {"conditions": [condition]}}]

    queue = LocalQueue("", "team-a", {}, workloads, clock=lambda: now)
    refusals = []
    times = ((0, missing), (25, missing), (40, FULL), (50, missing), (75, missing), (80, missing))
    for second, words in times:
        now, message = second, words
        queue.waits(RUN, gated)
        refusals.append(queue.refusal(RUN))
    assert refusals == [""] * 5 + [f"{missing}."]


def test_queue_of_a_job_comes_before_the_agents_and_is_refused_without_kueue(tmp_path: Path) -> None:
    training_input = parse_training_input({"engineOptions": {"kubernetes": {"queue": "team-b"}}})
    asked = order(CHIEF).model_copy(update={"training_input": training_input})
    with fake_cluster() as api:
        api.groups, api.webhook = KUEUE, kueue_webhook
        with lab_on(api, tmp_path / "kueue", "team-a") as lab:
            lab.runtime.place(asked)
            lab.runtime.start(RUN, [launch(CHIEF)])
            pod = api.objects[f"{PODS}/{objects.pod_name(RUN, CHIEF)}"]
            assert pod["metadata"]["labels"][admission.QUEUE] == "team-b"
            (report,) = lab.runtime.observe(RUN)
            assert report.waits.startswith("in the LocalQueue team-b: ")
    with fake_cluster() as api, lab_on(api, tmp_path / "plain") as lab:
        lab.runtime.place(asked)
        with pytest.raises(
            StartFailed, match="names the queue team-b of Kueue, which the agent does not use"
        ) as failed:
            lab.runtime.start(RUN, [launch(CHIEF)])
        assert failed.value.reason is Reason.REFUSED
        assert api.names("pods") == []


@pytest.mark.parametrize(
    ("queue", "managed", "message"),
    [("team-a", False, "Kueue does not queue the pods"), ("", True, "name its LocalQueue with --local-queue")],
)
def test_run_whose_pods_are_queued_by_two_or_by_nobody_is_not_started(
    tmp_path: Path, queue: str, managed: bool, message: str
) -> None:
    def webhook(path: str, body: dict[str, Any]) -> None:
        if managed and path.endswith("/pods"):
            body["metadata"]["labels"][admission.MANAGED] = "true"

    with fake_cluster() as api:
        api.groups, api.webhook = KUEUE, webhook
        with lab_on(api, tmp_path, queue) as lab:
            with pytest.raises(StartFailed, match=message) as failed:
                lab.start(CHIEF, WORKER)
            assert failed.value.reason is Reason.HOST_FAILED
            assert api.names("pods") == []
