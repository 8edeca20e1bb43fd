"""The client and the runtime against an API server that fails."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from beds.fake_cluster import NAMESPACE, FakeCluster, Fault, fake_cluster
from beds.waiting import until
from contract.runtimes import runtime_labs
from trainyard_agent.engines.kubernetes.api import client as client_module
from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeDown, KubeRefused
from trainyard_agent.engines.kubernetes.pods import objects, removal
from trainyard_agent.engines.kubernetes.pods import watch as pod_watch
from trainyard_agent.engines.kubernetes.pods.watch import PodWatch
from trainyard_agent.engines.kubernetes.runtime import KubernetesRuntime
from trainyard_agent.runtimes.base import Keep, Launch, StartFailed
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.sync import RunOrder

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN = "1" * 32
OWNER = objects.PodOwner("agent")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    monkeypatch.setattr(client_module, "_RETRY_S", 0.01)
    monkeypatch.setattr(pod_watch, "_RETRY_S", 0.01)
    monkeypatch.setattr(client_module, "_CONFLICT_PAUSE_S", 0.01)
    monkeypatch.setattr(removal, "_PAUSE_S", 0.01)
    with fake_cluster() as cluster:
        yield cluster


@pytest.fixture
def client(api: FakeCluster) -> Iterator[KubeClient]:
    with closing(api.client()) as client:
        yield client


@pytest.fixture
def runtime(client: KubeClient, tmp_path: Path) -> Iterator[KubernetesRuntime]:
    with closing(KubernetesRuntime(tmp_path, client, OWNER)) as runtime:
        yield runtime


def pod(name: str) -> dict[str, object]:
    return {"metadata": {"name": name, "labels": {objects.AGENT: "agent"}}, "spec": {}}


def order(*tasks: str) -> RunOrder:
    return runtime_labs.order(RUN, *(tasks or (CHIEF, WORKER)))


def started(runtime: KubernetesRuntime) -> None:
    runtime.place(order())
    runtime.start(RUN, [Launch(task, (), {}, (), 0, image="i") for task in (CHIEF, WORKER)])


def running(api: FakeCluster, task: str) -> None:
    state = {"running": {"startedAt": "2026-01-01T10:00:00Z"}}
    api.set_status(objects.pod_name(RUN, task), phase="Running", containerStatuses=[{"name": "main", "state": state}])


def ended(api: FakeCluster, task: str, code: int) -> None:
    state = {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T10:00:05Z"}}
    api.set_status(
        objects.pod_name(RUN, task),
        phase="Failed" if code else "Succeeded",
        containerStatuses=[{"name": "main", "state": state}],
    )


# Watches.

ERROR_410 = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}
HALF = (b'{"type": "MODIFIED", "object": {"metad',)
BROKEN_WATCHES = {
    "410 as an answer": Fault(410),
    "410 as an event": Fault(events=(ERROR_410,)),
    "cut": Fault(events=(), is_cut=True),
    "cut in an event": Fault(chunks=HALF, is_cut=True),
    "ended in an event": Fault(chunks=HALF),
    "an event without an object": Fault(events=({"type": "MODIFIED"},)),
    "500": Fault(500),
    "429": Fault(429, headers={"Retry-After": "1"}),
    "a proxy without its server": Fault(503, body=b"<html>"),
    "a token that is not valid yet": Fault(401),
}


@pytest.mark.parametrize("how", BROKEN_WATCHES)
def test_watch_that_breaks_misses_no_change(api: FakeCluster, client: KubeClient, how: str) -> None:
    """Deletions and creations while nothing was seen are known afterwards."""
    api.fail("WATCH", "/pods", BROKEN_WATCHES[how])
    for name in ("deleted", "stays"):
        api.create(PODS, pod(name))
    lists = 0

    def change() -> None:
        """Change something between the list and the watch that breaks."""
        nonlocal lists
        lists += 1
        if lists == 1:
            api.delete(f"{PODS}/deleted", 0)
            api.create(PODS, pod("created"))

    listed = client.list

    def listing(kind: str, selector: str) -> tuple[list[dict[str, object]], str]:
        found = listed(kind, selector)
        change()
        return found

    client.list = listing  # type: ignore[method-assign]
    watch = PodWatch(client, OWNER.selector, lambda _: None)
    watch.start()
    with closing(watch):
        until(lambda: watch.get("created") and not watch.get("deleted"))
        assert watch.get("stays")
        assert api.faults_left == 0


def test_event_with_characters_that_end_lines_elsewhere_is_one_event(api: FakeCluster, client: KubeClient) -> None:
    """An API server escapes only some of them: in a replica's arguments, or what its kubelet says."""
    event = {"type": "MODIFIED", "object": {"metadata": {"name": "a\x85b\u2028c"}}}
    chunk = json.dumps(event, ensure_ascii=False).encode() + b"\n"
    api.fail("WATCH", "/pods", Fault(chunks=(chunk[:50], chunk[50:] + chunk)))
    assert list(client.watch("pods", "", "1")) == [("MODIFIED", event["object"])] * 2


def test_watch_that_hangs_is_given_up(api: FakeCluster, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_CALL_S", 0.2)
    monkeypatch.setattr(client_module, "_WATCH_S", 0)
    api.fail("WATCH", "/pods", Fault(hangs=True))
    watch = PodWatch(client, OWNER.selector, lambda _: None)
    watch.start()
    with closing(watch):
        until(lambda: len(api.watches) > 1)


def test_store_that_was_restored_from_a_backup_is_believed(api: FakeCluster, client: KubeClient) -> None:
    """Its versions are lower than those that are known."""
    api.create(PODS, pod("later-than-the-backup"))
    watch = PodWatch(client, OWNER.selector, lambda _: None)
    watch.start()
    with closing(watch):
        until(lambda: watch.get("later-than-the-backup") and api.watches)
        api.restore()
        api.create(PODS, pod("of-the-backup"))
        until(lambda: watch.get("of-the-backup"))
        assert not watch.get("later-than-the-backup")


# Calls.


def test_conflict_of_a_quota_is_no_creation(api: FakeCluster, client: KubeClient) -> None:
    quota = Fault(409, "Operation cannot be fulfilled on resourcequotas: the object has been modified")
    api.fail("POST", "/pods", quota, quota)
    assert client.create("pods", pod("one"))["metadata"]["name"] == "one"
    api.fail("POST", "/pods", *[quota] * 10)
    with pytest.raises(KubeRefused, match="resourcequotas"):
        client.create("pods", pod("two"))


@pytest.mark.parametrize("pause", ["0", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_busy_server_is_asked_again(api: FakeCluster, client: KubeClient, pause: str) -> None:
    api.fail("POST", "/pods", *[Fault(429, headers={"Retry-After": pause})] * 2)
    client.create("pods", pod("one"))
    api.fail("GET", "/pods/one", *[Fault(429, "too many requests")] * 10)
    with pytest.raises(KubeRefused, match="too many requests"):
        client.get("pods", "one")


@pytest.mark.parametrize(
    "fault",
    [Fault(503, body=b"<html>"), Fault(200, body=b"<html>"), Fault(200, body=b"[]"), Fault(hangs=True)],
    ids=["away", "a page", "no object", "slow"],
)
def test_answer_that_is_none_leaves_unknown_whether_it_was_done(
    api: FakeCluster, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(client_module, "_CALL_S", 0.3)
    api.fail("GET", "/pods/one", fault)
    with closing(api.client()) as client, pytest.raises(KubeDown):
        client.get("pods", "one")


# Runs.


def test_run_is_made_and_removed_through_every_failure(api: FakeCluster, runtime: KubernetesRuntime) -> None:
    for kind in ("configmaps", "services", "pods"):
        api.fail("POST", f"/{kind}", Fault(lost=True))
    started(runtime)
    assert len(api.names("pods")) == 2
    running(api, CHIEF)
    ended(api, WORKER, 1)
    until(lambda: [one.state for one in runtime.observe(RUN)] == [ReplicaState.RUNNING, ReplicaState.EXITED])

    ended(api, CHIEF, 0)
    name = objects.pod_name(RUN, CHIEF)
    failures = [("PATCH", name), ("DELETE", name), ("DELETE", "/services/ty-111111111111")]
    for method, path in [*failures, ("DELETE", "/configmaps/ty-111111111111")]:
        api.fail(method, path, Fault(500))
    for _ in range(4):
        with pytest.raises(KubeRefused):
            runtime.remove(RUN)
    runtime.remove(RUN)
    assert not api.objects
    assert runtime.observe(RUN) == ()


REFUSALS = {
    "a permission": (403, 'pods is forbidden: User "a" cannot create resource "pods"', Reason.REFUSED),
    "a RuntimeClass": (403, 'pod rejected: RuntimeClass "nope" not found', Reason.REFUSED),
    "an image policy": (403, "admission webhook denied the request: image of no signer", Reason.REFUSED),
    "a policy that answers 400": (400, "admission webhook denied the request: no team", Reason.REFUSED),
    "a bad object": (422, "spec.containers[0].image: Invalid value", Reason.REFUSED),
    "a quota that is used up": (403, "exceeded quota: team-a, requested: cpu=4", Reason.GIVEN_BACK),
    "credentials that have expired": (401, "Unauthorized", Reason.GIVEN_BACK),
    "a webhook that is away": (500, "failed calling webhook: context deadline exceeded", Reason.GIVEN_BACK),
    "an API server that ends": (503, "the server is currently unable to handle it", Reason.GIVEN_BACK),
}


def test_run_that_cannot_be_made_is_refused_or_given_back_with_the_words_and_leaves_nothing(
    api: FakeCluster, runtime: KubernetesRuntime
) -> None:
    """The first object, or one of the pods beside those that run."""
    wrong = {}
    for what, (status, words, reason) in REFUSALS.items():
        api.fail("POST", "/configmaps", Fault(status, words))
        with pytest.raises(StartFailed) as failed:
            runtime.place(order(CHIEF, WORKER))
        api.fail("POST", "/pods", Fault(status, words))
        started(runtime)
        (end,) = [report.exit for report in runtime.observe(RUN) if report.exit]
        runtime.stop(RUN, 1.0)
        runtime.remove(RUN)
        seen = (failed.value.reason, failed.value.message, end.reason, end.message, dict(api.objects))
        if seen != (reason, words, reason, words, {}):
            wrong[what] = seen
    assert not wrong


def test_program_of_an_image_is_kept_only_where_it_is_named(api: FakeCluster, runtime: KubernetesRuntime) -> None:
    training_input = parse_training_input({"masterConfig": {"imageUri": "team/a:1"}})
    runtime.place(order(CHIEF).model_copy(update={"training_input": training_input}))
    with pytest.raises(StartFailed, match="keepOnFailure needs containerCommand on Kubernetes"):
        runtime.start(RUN, [Launch(CHIEF, ("--lr", "1"), {}, (), 0, image="team/a:1", keep=Keep(60, "j"))])
    assert not api.objects


def test_large_gang_whose_ends_have_long_messages_is_told_and_known_to_the_next_agent(
    api: FakeCluster, client: KubeClient, runtime: KubernetesRuntime, tmp_path: Path
) -> None:
    """They must fit into its root, of 1 MiB, as when packages cannot be installed in any pod of a thousand."""
    tasks = [CHIEF, *(f"worker-replica-{number}" for number in range(28))]
    runtime.place(order(*tasks))
    runtime.start(RUN, [Launch(task, (), {}, (), 0, image="i") for task in tasks])
    words = "x" * 40_000
    end = {"exitCode": 128, "reason": "StartError", "message": words, "finishedAt": "2026-01-01T10:00:05Z"}
    for task in tasks:
        name = objects.pod_name(RUN, task)
        api.set_status(name, phase="Failed", containerStatuses=[{"name": "main", "state": {"terminated": end}}])
    until(lambda: all(report.exit for report in runtime.observe(RUN)))
    reported = runtime.observe(RUN)
    first = min((report.exit for report in reported if report.exit), key=lambda end: end.order)
    assert first.message == f"{words}."
    with closing(KubernetesRuntime(tmp_path, client, OWNER)) as next_one:
        assert next_one.observe(RUN) == reported
