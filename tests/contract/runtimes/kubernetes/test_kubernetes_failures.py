"""Failures of a cluster, and their outcomes: the table of docs/how-to/kubernetes.md, row by row.

What a status of a pod means is in the units, and refusals are on the fake cluster. What breaks nothing but its own run
happens side by side: the first test that asks starts it all.
"""

import contextlib
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from beds.kubernetes.bed import Bed
from beds.kubernetes.kube_api import KubeApi, Refused
from beds.kubernetes.machines import wait_until
from beds.run_ids import unique_run
from contract.runtimes.conftest import Namespaces
from contract.runtimes.runtime_labs import FOREVER, STUBBORN, Driver, KubernetesLab, Program
from trainyard_agent.control.start_deadline import StartDeadline
from trainyard_agent.engines.fake import Print
from trainyard_agent.engines.kubernetes.api.access import RULES
from trainyard_agent.engines.kubernetes.api.client import KubeError, KubeObject, KubeRefused
from trainyard_agent.engines.kubernetes.capacity.admission import MANAGED
from trainyard_agent.engines.kubernetes.logs import logs
from trainyard_agent.engines.kubernetes.pods import objects, status
from trainyard_agent.runtimes.base import Launch
from trainyard_protocol.states import Reason, ReplicaState, reason_of_exit
from trainyard_protocol.wire.logs import LogGap, LogPosition
from trainyard_protocol.wire.sync import ExitReport, ReplicaReport

pytestmark = pytest.mark.long

CHIEF, WORKER = "master-replica-0", "worker-replica-0"
RUN, AWAY = unique_run("1"), unique_run("2")
ENDS_WELL = Program((Print("up"),), shell="trap 'echo saved; exit 0' TERM; sleep 1000 & wait")
OWN_END = Program((Print("up"),), shell="trap 'exit 5' TERM; while :; do sleep 0.2; done")
FAST, SLOW, WIDTH = 7500, 300, 1000
LINES = FAST + SLOW
"""Lines of a log that is rotated twice at least, and not at its end: who comes late has no line of what was rotated. A
file has its 2 MiB after 13 s, so a reader on a busy machine may be that late."""

CHATTERBOX = Program(
    python=f"""
import sys, time
begun = time.monotonic()
for number in range({LINES}):
    sys.stdout.write(f"line {{number}}".ljust({WIDTH}, ".") + "\\n")  # at once, as docs/how-to/kubernetes.md says
    if number % 20 == 0:
        sys.stdout.flush()
        due = begun + min(number, {FAST}) / 160 + max(0, number - {FAST}) / 20
        time.sleep(max(0, due - time.monotonic()))
"""
)


def run_of(row: str) -> str:
    return uuid.uuid5(uuid.UUID(RUN), row).hex


class Failures:
    """Runs that fail at the same time, each in its own way."""

    def __init__(self, bed: Bed, api: KubeApi, lab: KubernetesLab, other: KubernetesLab) -> None:
        self.bed, self.api, self.lab, self.other = bed, api, lab, other
        self.driver, self.elsewhere = Driver(lab), Driver(other)
        self.doomed_at = 0.0

    def start(self, registry: str) -> None:
        """Everything; what happens to it later, the tests do."""
        self.elsewhere.start(AWAY, {CHIEF: CHATTERBOX})
        self.driver.start(run_of("rotated"), {CHIEF: CHATTERBOX})
        image = f"{registry}/no/image:1"
        self._start("no image", {CHIEF: FOREVER, WORKER: FOREVER}, {CHIEF: lambda one: replace(one, image=image)})
        eats = Program(python="import time; hoard = b'x' * (200 << 20); time.sleep(1000)")
        self._start("no memory", {CHIEF: eats}, {CHIEF: lambda one: replace(one, memory_bytes=64 << 20)})
        large = partial(replace, vcpus=10_000, memory_bytes=1 << 20)
        self._start("no room", {CHIEF: FOREVER, WORKER: FOREVER}, {WORKER: large})
        self._start("deleted", {CHIEF: FOREVER, WORKER: ENDS_WELL})
        self.driver.reports(run_of("rotated"))  # from now on it is followed
        self.doomed_at = int(time.time()) + 9
        for first, (task, other) in enumerate(((CHIEF, WORKER), (WORKER, CHIEF), (WORKER, CHIEF))):
            at = self.doomed_at + first
            fails, follows = _fails_at(at + 0.2, 3), _fails_at(at + 0.7, 1)
            self._start(f"failures {first}", {task: fails, other: follows})

    def end_of(self, row: str, task: str = CHIEF) -> ExitReport:
        return self.driver.end(run_of(row), task)

    def remove(self, row: str) -> None:
        self.driver.runtime.remove(run_of(row))
        assert self.lab.remaining(run_of(row)) == []

    def _start(
        self, row: str, programs: Mapping[str, Program], changes: Mapping[str, Callable[[Launch], Launch]] | None = None
    ) -> None:
        self.driver.place(run_of(row), *sorted(programs))
        launches = {task: self.lab.launch(task, programs[task]) for task in sorted(programs)}
        launches |= {task: change(launches[task]) for task, change in (changes or {}).items()}
        self.driver.runtime.start(run_of(row), list(launches.values()))


def _fails_at(at: float, code: int) -> Program:
    wait = f"import sys, time; time.sleep(max(0, {at} - time.time())); print('failed'); sys.exit({code})"
    return Program(python=wait)


@pytest.fixture(scope="module")
def api(kubernetes: Bed) -> Iterator[KubeApi]:
    with KubeApi(kubernetes.admin) as api:
        yield api


@pytest.fixture(scope="module")
def failures(
    kubernetes: Bed, api: KubeApi, kubernetes_namespaces: Namespaces, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Failures]:
    state_dir = tmp_path_factory.mktemp("failures")
    with (
        kubernetes_namespaces.lab(state_dir / "agent") as lab,
        kubernetes_namespaces.lab(state_dir / "other") as other,
        kubernetes.empty_registry() as registry,
    ):
        failures = Failures(kubernetes, api, lab, other)
        failures.start(registry)
        yield failures


@pytest.mark.usefixtures("failures")  # they go on meanwhile
def test_namespace_that_is_deleted_goes_once_its_pods_are_let_go_of_by_hand(
    kubernetes: Bed, api: KubeApi, tmp_path: Path
) -> None:
    """The agent's account and role go with it: it is refused, and can let go of nothing."""
    namespace = f"doomed-{uuid.uuid4().hex[:8]}"
    lab = KubernetesLab(tmp_path / "state", kubernetes.with_role(namespace, RULES))
    driver = Driver(lab)
    driver.start_and_wait(RUN, {CHIEF: FOREVER})
    path = f"/api/v1/namespaces/{namespace}"
    api.delete(path)
    pod = f"{path}/pods/{objects.pod_name(RUN, CHIEF)}"
    wait_until(lambda: api.get(pod)["status"]["phase"] == "Failed", "its program ends")
    driver.until(lambda: _is_refused(driver))
    api.patch(pod, {"metadata": {"finalizers": None}})
    wait_until(lambda: not _exists(api, path), "the namespace is gone")
    lab.close()
    lab.client.close()


def _is_refused(driver: Driver) -> bool:
    try:
        driver.reports(RUN)
    except KubeRefused:
        return True
    return False


def _exists(api: KubeApi, path: str) -> bool:
    try:
        api.get(path)
    except Refused as refused:
        return refused.code != 404
    return True


def test_pod_that_is_deleted_by_hand_tells_how_its_program_ended(failures: Failures) -> None:
    driver, run_id = failures.driver, run_of("deleted")
    driver.until(lambda: all(driver.texts(run_id, task) == ["up"] for task in (CHIEF, WORKER)))
    for task in (CHIEF, WORKER):
        failures.lab.client.delete("pods", objects.pod_name(run_id, task))

    ends = {task: failures.end_of("deleted", task) for task in (CHIEF, WORKER)}
    assert _is_killed(ends[CHIEF])
    assert (ends[WORKER].code, ends[WORKER].reason) == _known(failures.lab, run_id, WORKER, 0)
    assert {end.after_stop for end in ends.values()} == {False}
    assert driver.wait_for_log(run_id, WORKER) == ["up", "saved"]
    failures.remove("deleted")


def _known(lab: KubernetesLab, run_id: str, task: str, code: int) -> tuple[int | None, Reason]:
    """The exit code of a program whose pod was deleted, and its reason, where the kubelet has not lost them."""
    return (None, Reason.VANISHED) if lab.has_lost_code(run_id, task) else (code, reason_of_exit(code))


def _is_killed(ended: ExitReport) -> bool:
    """Whether a program that ends of SIGTERM was stopped with its pod, and its exit code perhaps lost. Both are a new
    run."""
    killed = (ended.code, ended.reason) == (143, Reason.KILLED_BY_SIGNAL)
    return (killed and "Its pod was deleted" in ended.message) or (
        (ended.code, ended.reason) == (None, Reason.VANISHED)
    )


def test_program_that_takes_more_than_its_memory_is_out_of_memory(failures: Failures) -> None:
    ended = failures.end_of("no memory")
    assert (ended.code, ended.reason) == (137, Reason.OUT_OF_MEMORY)
    failures.remove("no memory")


def test_partial_gang_in_a_full_cluster_is_given_back_within_the_start_deadline(failures: Failures) -> None:
    driver, run_id = failures.driver, run_of("no room")
    driver.until(lambda: "Insufficient cpu" in driver.reports(run_id)[WORKER].waits)
    driver.until(lambda: driver.texts(run_id, CHIEF) == ["up"])
    deadline = StartDeadline(600)
    assert not deadline.overdue({run_id: driver.runtime.observe(run_id)}, 0)
    overdue = deadline.overdue({run_id: driver.runtime.observe(run_id)}, 600)
    assert f"{WORKER} was not started for 600 s: 0/" in overdue[run_id]
    for task in (CHIEF, WORKER):  # as Kueue's pods have them, which keeps them until their group has ended
        held = {"metadata": {"finalizers": [objects.FINALIZER, MANAGED]}}
        failures.lab.client.patch("pods", objects.pod_name(run_id, task), held)
    driver.runtime.stop(run_id, 1.0, Reason.GIVEN_BACK)
    ends = driver.ends(run_id)
    assert {task: (end.reason, end.after_stop) for task, end in ends.items()} == {
        CHIEF: (Reason.GIVEN_BACK, True),
        WORKER: (Reason.GIVEN_BACK, True),
    }
    assert driver.wait_for_log(run_id, WORKER) == []
    failures.remove("no room")


def test_first_of_two_failures_within_a_second_is_the_first_in_order(failures: Failures) -> None:
    firsts = {}
    for number in range(3):
        ends = {task: failures.end_of(f"failures {number}", task) for task in (CHIEF, WORKER)}
        firsts[number] = min(ends.values(), key=lambda end: end.order).code
        failures.remove(f"failures {number}")
    assert firsts == dict.fromkeys(range(3), 3)


def test_log_that_is_rotated_is_complete_where_it_was_followed_and_says_its_gap_where_not(failures: Failures) -> None:
    """One agent follows from the beginning; the other one comes late, and is then away for a while."""
    lines = [f"line {number}".ljust(WIDTH, ".") for number in range(LINES)]
    elsewhere, run_id = failures.elsewhere, AWAY
    elsewhere.until(lambda: elsewhere.texts(run_id, CHIEF))
    failures.other.close()
    whole = failures.driver.whole_log(run_of("rotated"), CHIEF)
    assert [line.text for line in whole.lines] == lines
    assert whole.gap is None

    failures.other.reopen().recover()
    elsewhere.until(lambda: elsewhere.runtime.read_log(run_id, CHIEF, 1 << 40, 1, 1).complete)
    found, gaps = _slices(elsewhere, run_id)
    assert found == [text for text in lines if text in set(found)]
    assert len(found) < LINES
    assert found[-1] == lines[-1]
    assert gaps
    failures.remove("rotated")
    elsewhere.runtime.remove(run_id)
    assert failures.other.remaining(run_id) == []


def _slices(driver: Driver, run_id: str) -> tuple[list[str], list[LogGap]]:
    texts: list[str] = []
    gaps = []
    while True:
        found = driver.runtime.read_log(run_id, CHIEF, len(texts), 10_000, 1 << 26)
        texts += [line.text for line in found.lines]
        gaps += [found.gap] if found.gap else []
        if found.complete:
            return texts, gaps


def test_image_that_its_registry_does_not_have_fails_at_once(failures: Failures) -> None:
    ended = failures.end_of("no image")
    assert (ended.code, ended.reason) == (None, Reason.IMAGE_FAILED)
    assert "no/image:1" in ended.message
    assert failures.driver.reports(run_of("no image"))[WORKER].exit is None
    failures.remove("no image")


def test_node_that_is_cut_off_leaves_its_pods_as_last_seen_and_tells_their_ends_when_it_is_back(
    kubernetes: Bed, kubernetes_lab: KubernetesLab
) -> None:
    """The cluster deletes its pods after five minutes. Here that is done at once."""
    driver, client = Driver(kubernetes_lab), kubernetes_lab.client
    with _only_on(kubernetes, "node-2"):
        driver.start_and_wait(RUN, {CHIEF: OWN_END, WORKER: FOREVER})
    before = _running(driver)
    with kubernetes.cut("node-2"):
        kubernetes.wait_until_ready("node-2", ready=False)
        for task in (CHIEF, WORKER):
            client.delete("pods", objects.pod_name(RUN, task))
        kubernetes_lab.reopen().recover()  # it lists the pods anew, deletion and all
        assert driver.reports(RUN) == before
    kubernetes.wait_until_ready("node-2")
    ends = driver.ends(RUN)
    chief, worker = ends[CHIEF], ends[WORKER]
    assert (chief.code, chief.reason) == _known(kubernetes_lab, RUN, CHIEF, 5)
    assert _is_killed(worker)
    driver.runtime.remove(RUN)
    assert driver.lab.remaining(RUN) == []


def test_node_without_power_keeps_its_pods_as_last_seen_until_it_is_back_or_they_are_deleted_by_force(
    kubernetes: Bed, api: KubeApi, kubernetes_lab: KubernetesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is removed: the cluster deletes its pods by force, after a minute. Here that is done at once."""
    driver = Driver(kubernetes_lab)
    with _only_on(kubernetes, "node-2"):
        driver.start_and_wait(RUN, {CHIEF: FOREVER, WORKER: FOREVER})
    before = _running(driver)
    kubernetes.kill("node-2")
    assert driver.reports(RUN) == before
    monkeypatch.setattr(status, "_LATE", status._LATE / 10)
    api.delete("/api/v1/nodes/node-2")
    kubernetes_lab.client.delete("pods", objects.pod_name(RUN, WORKER), 0)
    driver.until(lambda: driver.reports(RUN)[WORKER].exit)
    assert driver.reports(RUN)[CHIEF] == before[CHIEF]
    kubernetes.boot("node-2")
    ends = driver.ends(RUN)
    assert {task: (end.code, end.reason) for task, end in ends.items()} == {
        CHIEF: (None, Reason.VANISHED),
        WORKER: (None, Reason.HOST_LOST),
    }
    driver.runtime.remove(RUN)
    assert driver.lab.remaining(RUN) == []


def test_log_goes_on_after_a_pause_in_utc_on_nodes_of_any_zone(
    kubernetes: Bed, kubernetes_lab: KubernetesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node of the bed is east of UTC, the other one west."""
    monkeypatch.setattr(logs, "_QUIET_S", 0.3)
    driver = Driver(kubernetes_lab)
    pauses = "import time\nfor _ in range(4): print(time.time_ns() // 1000, flush=True); time.sleep(1.2)"
    for number, node in enumerate(kubernetes.nodes):
        run_id = run_of(f"zone {number}")
        with _only_on(kubernetes, node):
            driver.start(run_id, {CHIEF: Program(python=pauses)})
            driver.until(partial(driver.texts, run_id, CHIEF))
        log = driver.whole_log(run_id, CHIEF)
        written = [int(line.text) for line in log.lines]
        stamped = [round(datetime.fromisoformat(line.time).timestamp() * 1e6) for line in log.lines]
        assert len(written) == 4, node
        assert log.gap is None, node
        raw = kubernetes_lab.client.last_log_line(objects.pod_name(run_id, CHIEF), objects.CONTAINER)
        assert re.match(rb"\S+[+-]\d\d:30 ", raw), raw
        bounds = [*written, time.time_ns() // 1000]
        for begin, stamp, end in zip(bounds, stamped, bounds[1:], strict=False):
            assert begin <= stamp <= end, f"{node}: {[line.time for line in log.lines]}"


@contextlib.contextmanager
def _only_on(bed: Bed, node: str) -> Iterator[None]:
    others = [one for one in bed.nodes if one != node]
    for other in others:
        bed.cordon(other)
    try:
        yield
    finally:
        for other in others:
            bed.cordon(other, False)


def test_replicas_go_on_while_kubelet_api_server_and_etcd_are_killed(
    kubernetes: Bed, kubernetes_lab: KubernetesLab
) -> None:
    driver = Driver(kubernetes_lab)
    driver.start_and_wait(RUN, {CHIEF: OWN_END, WORKER: STUBBORN})
    before = _running(driver)
    with kubernetes.without_api_server():
        for node in kubernetes.nodes:
            kubernetes.restart_kubelet(node)
        assert driver.reports(RUN) == before
    with kubernetes.without_etcd():
        assert driver.reports(RUN) == before
    driver.until(lambda: all(kubernetes.is_ready(node) for node in kubernetes.nodes))
    assert driver.reports(RUN) == before
    driver.runtime.stop(RUN, 4.0)
    ends = driver.ends(RUN)
    assert {task: (end.reason, end.after_stop) for task, end in ends.items()} == {
        CHIEF: (Reason.STOPPED, True),
        WORKER: (Reason.STOPPED, True),
    }
    assert driver.wait_for_log(RUN, CHIEF) == ["up"]
    driver.runtime.remove(RUN)
    assert driver.lab.remaining(RUN) == []


def test_start_in_which_the_api_server_is_killed_is_given_back_with_what_was_made(
    kubernetes: Bed, kubernetes_lab: KubernetesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, client = Driver(kubernetes_lab), kubernetes_lab.client
    driver.place(RUN, CHIEF, WORKER)
    launches = [driver.lab.launch(task, FOREVER) for task in (CHIEF, WORKER)]
    create = client.create
    with contextlib.ExitStack() as killed:

        def create_and_kill(kind: str, body: KubeObject) -> KubeObject:
            if body["metadata"]["labels"].get(objects.TASK) == WORKER:
                wait_until(lambda: _is_running(driver), "the first pod runs")
                killed.enter_context(kubernetes.without_api_server())
            return create(kind, body)

        monkeypatch.setattr(client, "create", create_and_kill)
        assert driver.runtime.start(RUN, launches).launched
        with pytest.raises(KubeError):
            driver.runtime.observe(RUN)
    driver.until(lambda: driver.reports(RUN)[WORKER].exit)
    _is_given_back(driver, Reason.GIVEN_BACK, "does not answer")


def test_start_in_which_the_agent_is_killed_is_given_back_with_what_was_made(
    kubernetes_lab: KubernetesLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pods have run, so it is not started again as the same run."""
    driver, client = Driver(kubernetes_lab), kubernetes_lab.client
    driver.place(RUN, CHIEF, WORKER)
    create = client.create

    def create_and_die(kind: str, body: KubeObject) -> KubeObject:
        if body["metadata"]["labels"].get(objects.TASK) == WORKER:
            raise KilledError
        return create(kind, body)

    monkeypatch.setattr(client, "create", create_and_die)
    with pytest.raises(KilledError):
        driver.runtime.start(RUN, [driver.lab.launch(task, FOREVER) for task in (CHIEF, WORKER)])

    (handle,) = driver.lab.reopen().recover()
    assert (handle.run_id, handle.launched) == (RUN, True)
    driver.until(lambda: _is_running(driver))
    _is_given_back(driver, Reason.HOST_FAILED, "The agent ended")


def _running(driver: Driver) -> dict[str, ReplicaReport]:
    """The reports once all replicas are seen running: a log may be there before."""
    driver.until(lambda: {one.state for one in driver.reports(RUN).values()} == {ReplicaState.RUNNING})
    return driver.reports(RUN)


class KilledError(Exception):
    """The agent's."""


def _is_running(driver: Driver) -> bool:
    pod = driver.lab.client.get("pods", objects.pod_name(RUN, CHIEF))  # type: ignore[attr-defined] # a KubernetesLab
    return bool(pod and pod["status"]["phase"] == "Running")


def _is_given_back(driver: Driver, reason: Reason, why: str) -> None:
    reports = driver.reports(RUN)
    missing = reports[WORKER].exit
    assert missing is not None
    assert (missing.code, missing.reason, missing.after_stop) == (None, reason, False)
    assert why in missing.message
    driver.until(lambda: driver.reports(RUN)[CHIEF].state is ReplicaState.RUNNING)
    driver.runtime.stop(RUN, 1.0, Reason.GIVEN_BACK)
    assert driver.wait_for_exits(RUN)[WORKER].exit == missing
    driver.runtime.remove(RUN)
    assert driver.lab.remaining(RUN) == []


def test_agent_without_its_directory_goes_on_where_the_log_of_the_server_ends(kubernetes_lab: KubernetesLab) -> None:
    driver = Driver(kubernetes_lab)
    driver.start(RUN, {CHIEF: Program(tuple(Print(f"line {n}") for n in range(50)), code=0)})
    driver.wait_for_log(RUN, CHIEF)
    lines = driver.runtime.read_log(RUN, CHIEF, 0, 20, 1 << 20).lines
    same = sum(line.time == lines[-1].time for line in lines)
    position = LogPosition(next=20, last_time=lines[-1].time, same_time=same)

    runtime = kubernetes_lab.move()
    runtime.recover()
    runtime.resume_log(RUN, CHIEF, position)
    driver.until(lambda: runtime.read_log(RUN, CHIEF, 1 << 30, 1, 1).complete)
    found = runtime.read_log(RUN, CHIEF, 20, 100, 1 << 20)
    assert ([line.text for line in found.lines], found.gap) == ([f"line {n}" for n in range(20, 50)], None)
