"""The table of what a pod's status says about its replica, and which ends of a gang are told when."""

from datetime import UTC, datetime
from functools import partial
from typing import Any

from trainyard_agent.engines.kubernetes.pods.ends import SETTLE_S, EndOrder
from trainyard_agent.engines.kubernetes.pods.status import PodState, state_of
from trainyard_protocol.states import Reason, ReplicaState
from trainyard_protocol.wire.sync import ExitReport

START, END = "2026-01-01T10:00:00Z", "2026-01-01T10:00:05Z"


def pod(state: dict[str, Any] | None = None, *conditions: dict[str, Any], **status: Any) -> dict[str, Any]:
    containers = [] if state is None else [{"name": "main", "state": state}]
    whole = {"phase": "Running", "containerStatuses": containers, "conditions": list(conditions), **status}
    return {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": whole}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": START, "finishedAt": END}}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def condition(kind: str, reason: str, message: str = "", status: str = "True") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


KILLED = ended(137)
ROOT, NO_FILE = "container has runAsNonRoot and image will run as root", 'exec: "x": executable file not found in $PATH'
FAILED = {"phase": "Failed"}
DISRUPTED, OF_KUEUE = partial(condition, "DisruptionTarget"), partial(condition, "TerminationTarget")
PREEMPTED = DISRUPTED("PreemptionByScheduler")

ENDS = {
    "completed": (pod(ended(0, "Completed")), 0, Reason.COMPLETED),
    "failed": (pod(ended(3)), 3, Reason.PROGRAM_ERROR),
    "killed": (pod(ended(137)), 137, Reason.KILLED_BY_SIGNAL),
    "out of memory": (pod(ended(137, "OOMKilled")), 137, Reason.OUT_OF_MEMORY),
    "no program": (pod(ended(128, "StartError")), None, Reason.START_FAILED),
    "preempted": (pod(ended(137), PREEMPTED), 137, Reason.PREEMPTED),
    "done before it was preempted": (pod(ended(0), PREEMPTED), 0, Reason.COMPLETED),
    "drained": (pod(ended(143), DISRUPTED("EvictionByEvictionAPI")), 143, Reason.PREEMPTED),
    "evicted by Kueue": (pod(KILLED, OF_KUEUE("WorkloadEvictedDueToPreempted")), 137, Reason.PREEMPTED),
    "not ready in time": (pod(KILLED, OF_KUEUE("WorkloadEvictedDueToPodsReadyTimeout")), 137, Reason.GIVEN_BACK),
    "its Workload was deleted": (pod(KILLED, OF_KUEUE("WorkloadDeleted", "It is deleted")), 137, Reason.PREEMPTED),
    "evicted by its node": (pod(None, **FAILED, reason="Evicted", message="Low on it."), None, Reason.HOST_FAILED),
    "evicted while it ran": (pod(KILLED, DISRUPTED("ByKubelet"), **FAILED, reason="Evicted"), 137, Reason.HOST_FAILED),
    "no room on its node": (pod(None, **FAILED, reason="OutOfcpu"), None, Reason.GIVEN_BACK),
    "refused by its node": (pod(None, **FAILED, reason="NodeAffinity"), None, Reason.HOST_FAILED),
    "longer than a policy allows": (pod(ended(143), **FAILED, reason="DeadlineExceeded"), 143, Reason.TIME_LIMIT),
    "node shut down": (pod(KILLED, **FAILED, reason="Terminated"), 137, Reason.HOST_SHUTDOWN),
    "node removed": (pod(KILLED, DISRUPTED("DeletionByPodGC"), **FAILED), 137, Reason.HOST_LOST),
    "end not seen": (pod(ended(137, "ContainerStatusUnknown"), **FAILED), None, Reason.VANISHED),
    "end not seen by containerd": (pod(ended(255, "Unknown"), **FAILED), None, Reason.VANISHED),
    "no such name": (pod(waiting("InvalidImageName", "bad")), None, Reason.IMAGE_FAILED),
    "no such image": (pod(waiting("ErrImagePull", "manifest unknown"), phase="Pending"), None, Reason.IMAGE_FAILED),
    "an image of no signer": (pod(waiting("SignatureValidationFailed", "no key")), None, Reason.IMAGE_FAILED),
    "root where none may be": (pod(waiting("CreateContainerConfigError", ROOT)), None, Reason.REFUSED),
    "no such file": (pod(waiting("CreateContainerError", NO_FILE)), None, Reason.START_FAILED),
}

DELETED = {"name": "p", "deletionTimestamp": END, "deletionGracePeriodSeconds": 30}
ENDS |= {
    "deleted before it had a node": ({**pod(), "metadata": DELETED, "spec": {}}, None, Reason.VANISHED),
    "deleted without an image": ({**pod(waiting("ErrImagePull")), "metadata": DELETED}, None, Reason.VANISHED),
    "deleted by force, and its node says nothing": (
        {**pod({"running": {"startedAt": START}}), "metadata": {**DELETED, "deletionGracePeriodSeconds": 0}},
        None,
        Reason.HOST_LOST,
    ),
    "deleted by hand while it ran": ({**pod(ended(143)), "metadata": DELETED}, 143, Reason.KILLED_BY_SIGNAL),
}

NO_GPU = "0/8 nodes are available: 8 Insufficient nvidia.com/gpu"
BACK_OFF = 'Back-off pulling image "r/denied:1"'
WAITS = {
    NO_GPU: pod(None, condition("PodScheduled", "Unschedulable", f"{NO_GPU}.", "False")),
    "its container is made on n": pod(waiting("ContainerCreating")),
    "ErrImagePull: dial tcp: i/o timeout": pod(waiting("ErrImagePull", "dial tcp: i/o timeout")),
    f"ImagePullBackOff: {BACK_OFF}": pod(waiting("ImagePullBackOff", BACK_OFF)),
    "CreateContainerError: deadline exceeded": pod(waiting("CreateContainerError", "deadline exceeded")),
    "its node has not begun": pod(),
}


def test_end_of_a_pod_has_a_code_and_a_reason() -> None:
    wrong = []
    for what, (found, code, reason) in ENDS.items():
        state = state_of(found)
        end = state.exit
        is_sentence = end is not None and (end.message.endswith(".") or reason is Reason.OUT_OF_MEMORY)
        reported = end and (state.state, end.code, end.reason)
        if not is_sentence or reported != (ReplicaState.EXITED, code, reason):
            wrong.append((what, state))
    assert wrong == []


def test_pod_that_may_still_start_waits() -> None:
    for waits, found in WAITS.items():
        state = state_of(found)
        assert (state.state, state.waits, state.exit) == (ReplicaState.STARTING, waits, None)


def beside(name: str, state: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "state": state, **more}


RUNNING = {"running": {"startedAt": START}}


def with_added(
    added: dict[str, Any], own: dict[str, Any] | None, *, before: bool = False, endless: bool = False, **status: Any
) -> dict[str, Any]:
    """A pod with a container that the cluster has added in the first place: beside the program, or before it."""
    found = pod(own, **status)
    kind = "initContainerStatuses" if before else "containerStatuses"
    found["status"][kind] = [added, *found["status"].get(kind, ())]
    policy = {"restartPolicy": "Always"} if endless else {}
    found["spec"]["initContainers"] = [{"name": added["name"], **policy}] if before else []
    return found


PROXY, INIT = "istio-proxy", "istio-init"
ABSENT, FIRST = waiting("ErrImagePull", "manifest unknown"), waiting("PodInitializing")


def beside_proxy(state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    return with_added(beside(PROXY, state), own)


def behind_proxy(own: dict[str, Any], **status: Any) -> dict[str, Any]:
    """A pod whose proxy runs before the program, for ever."""
    return with_added(beside(PROXY, RUNNING, started=True), own, before=True, endless=True, **status)


ADDED = {
    "it never ends": (beside_proxy(RUNNING, ended(0, "Completed")), ReplicaState.EXITED, 0),
    "it never ends, and the program fails": (beside_proxy(RUNNING, ended(3)), ReplicaState.EXITED, 3),
    "it has failed": (beside_proxy(ended(1), RUNNING), ReplicaState.RUNNING, None),
    "it is out of memory": (beside_proxy(ended(137, "OOMKilled"), RUNNING), ReplicaState.RUNNING, None),
    "its image is not there": (beside_proxy(ABSENT, RUNNING), ReplicaState.RUNNING, None),
    "it runs before, for ever": (behind_proxy(RUNNING), ReplicaState.RUNNING, None),
    "it runs before, for ever, and the program ends": (behind_proxy(ended(4)), ReplicaState.EXITED, 4),
    "it runs before, and is killed with the pod": (
        with_added(beside(PROXY, KILLED), ended(0), before=True, endless=True, phase="Failed"),
        ReplicaState.EXITED,
        0,
    ),
    "it is set up before": (with_added(beside(INIT, RUNNING), FIRST, before=True), ReplicaState.STARTING, None),
    "its image before is not there": (
        with_added(beside(INIT, ABSENT), FIRST, before=True),
        ReplicaState.STARTING,
        None,
    ),
}


def test_containers_that_a_cluster_adds_change_neither_state_nor_end() -> None:
    found = {}
    for name, (body, _, _) in ADDED.items():
        state = state_of(body)
        found[name] = (body, state.state, state.exit.code if state.exit else None)
    assert found == ADDED


def test_image_that_is_not_there_is_seen_behind_a_container_that_runs_before_for_ever() -> None:
    end = state_of(behind_proxy(ABSENT, phase="Pending")).exit
    assert end is not None
    assert end.reason is Reason.IMAGE_FAILED


def test_added_container_that_fails_before_the_program_is_named_and_not_the_jobs_fault() -> None:
    end = state_of(with_added(beside(INIT, ended(1)), FIRST, before=True, phase="Failed")).exit
    assert end is not None
    assert (end.code, end.reason) == (None, Reason.HOST_FAILED)
    assert end.message == "The container istio-init, which the cluster has added to its pod, failed: exit code 1."


BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def exited(second: int) -> PodState:
    at = BEGIN.replace(second=second)
    exit_ = ExitReport(code=1, reason=Reason.PROGRAM_ERROR, message="", finished_at=at)
    return PodState(ReplicaState.EXITED, BEGIN, exit_)


def last_line(task: str, several: bool) -> tuple[str, int]:
    return {"chief": ".7", "worker": ".2", "silent": ""}[task] if several else "", 0


def test_end_is_told_once_all_earlier_ones_must_be_known() -> None:
    ends, runs = EndOrder(), PodState(ReplicaState.RUNNING, BEGIN)
    assert ends.due({"chief": exited(6), "worker": runs}, 100.0, last_line) == []
    seen_later = {"chief": exited(6), "worker": exited(5), "silent": runs}
    assert ends.due(seen_later, 100.9, last_line) == []
    assert ends.due(seen_later, 100.0 + SETTLE_S, last_line) == ["worker", "chief"]


def test_ends_of_one_second_are_in_the_order_of_their_last_lines() -> None:
    gang = {"chief": exited(5), "worker": exited(5), "silent": exited(5)}
    assert EndOrder().due(gang, 0.0, last_line) == ["silent", "worker", "chief"]
