"""The table of what a pod's status says about its replica."""

from typing import Any

from trainyard_agent.engines.kubernetes.pods.status import PULLS, state_of
from trainyard_protocol.states import Reason, ReplicaState

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


PREEMPTED = condition("DisruptionTarget", "PreemptionByScheduler")

ENDS = {
    "completed": (pod(ended(0, "Completed")), 0, Reason.COMPLETED),
    "failed": (pod(ended(3)), 3, Reason.PROGRAM_ERROR),
    "killed": (pod(ended(137)), 137, Reason.KILLED_BY_SIGNAL),
    "out of memory": (pod(ended(137, "OOMKilled")), 137, Reason.OUT_OF_MEMORY),
    "no program": (pod(ended(128, "StartError")), None, Reason.START_FAILED),
    "preempted": (pod(ended(137), PREEMPTED), 137, Reason.PREEMPTED),
    "done before it was preempted": (pod(ended(0), PREEMPTED), 0, Reason.COMPLETED),
    "drained": (pod(ended(143), condition("DisruptionTarget", "EvictionByEvictionAPI")), 143, Reason.PREEMPTED),
    "evicted by Kueue": (
        pod(ended(137), condition("TerminationTarget", "WorkloadEvictedDueToPreempted")),
        137,
        Reason.PREEMPTED,
    ),
    "not ready in Kueue's time": (
        pod(ended(137), condition("TerminationTarget", "WorkloadEvictedDueToPodsReadyTimeout")),
        137,
        Reason.GIVEN_BACK,
    ),
    "its Workload was deleted": (
        pod(ended(137), condition("TerminationTarget", "WorkloadDeleted", "Workload is deleted")),
        137,
        Reason.PREEMPTED,
    ),
    "evicted by its node": (
        pod(None, phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
        None,
        Reason.HOST_FAILED,
    ),
    "evicted while it ran": (
        pod(ended(137), condition("DisruptionTarget", "TerminationByKubelet"), phase="Failed", reason="Evicted"),
        137,
        Reason.HOST_FAILED,
    ),
    "no room on its node": (pod(None, phase="Failed", reason="OutOfcpu"), None, Reason.GIVEN_BACK),
    "refused by its node": (pod(None, phase="Failed", reason="NodeAffinity"), None, Reason.HOST_FAILED),
    "longer than a policy allows": (pod(ended(143), phase="Failed", reason="DeadlineExceeded"), 143, Reason.TIME_LIMIT),
    "node shut down": (pod(ended(137), phase="Failed", reason="Terminated"), 137, Reason.HOST_SHUTDOWN),
    "node removed": (
        pod(ended(137), condition("DisruptionTarget", "DeletionByPodGC"), phase="Failed"),
        137,
        Reason.HOST_LOST,
    ),
    "end not seen": (pod(ended(137, "ContainerStatusUnknown"), phase="Failed"), None, Reason.VANISHED),
    "end not seen by containerd": (pod(ended(255, "Unknown"), phase="Failed"), None, Reason.VANISHED),
    "no such name": (pod(waiting("InvalidImageName", "bad")), None, Reason.IMAGE_FAILED),
    "no such image": (pod(waiting("ErrImagePull", "manifest unknown"), phase="Pending"), None, Reason.IMAGE_FAILED),
    "an image of no signer": (pod(waiting("SignatureValidationFailed", "no key")), None, Reason.IMAGE_FAILED),
    "root where none may be": (
        pod(waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")),
        None,
        Reason.REFUSED,
    ),
    "no such file": (
        pod(waiting("CreateContainerError", 'exec: "x": executable file not found in $PATH')),
        None,
        Reason.START_FAILED,
    ),
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

WAITS = {
    "0/8 nodes are available: 8 Insufficient nvidia.com/gpu": pod(
        None,
        condition("PodScheduled", "Unschedulable", "0/8 nodes are available: 8 Insufficient nvidia.com/gpu.", "False"),
    ),
    "its container is made on n": pod(waiting("ContainerCreating")),
    "ErrImagePull: dial tcp: i/o timeout": pod(waiting("ErrImagePull", "dial tcp: i/o timeout")),
    "CreateContainerError: context deadline exceeded": pod(
        waiting("CreateContainerError", "context deadline exceeded")
    ),
    "its node has not begun": pod(),
}


def test_end_of_a_pod_has_a_code_and_a_reason() -> None:
    wrong = []
    for what, (found, code, reason) in ENDS.items():
        state = state_of(found, PULLS)
        end = state.exit
        is_sentence = end is not None and (end.message.endswith(".") or reason is Reason.OUT_OF_MEMORY)
        reported = end and (state.state, end.code, end.reason)
        if not is_sentence or reported != (ReplicaState.EXITED, code, reason):
            wrong.append((what, state))
    assert wrong == []


def test_pod_that_may_still_start_waits() -> None:
    for waits, found in WAITS.items():
        state = state_of(found, PULLS)
        assert (state.state, state.waits, state.exit) == (ReplicaState.STARTING, waits, None)


def test_image_that_a_registry_refuses_is_tried_again_before_its_replica_fails() -> None:
    refused = pod(waiting("ErrImagePull", "pull access denied"))
    assert state_of(refused, PULLS - 1).waits == "ErrImagePull: pull access denied"
    assert state_of(refused, PULLS).exit is not None
