"""The table of what a pod's status says about its replica."""

from typing import Any

from trainyard_agent.engines.kubernetes.pods.status import state_of
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
    'ImagePullBackOff: Back-off pulling image "r/denied:1"': pod(
        waiting("ImagePullBackOff", 'Back-off pulling image "r/denied:1"')
    ),
    "CreateContainerError: context deadline exceeded": pod(
        waiting("CreateContainerError", "context deadline exceeded")
    ),
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


PROXY = "istio-proxy"
ADDED = {
    "it never ends": (with_added(beside(PROXY, RUNNING), ended(0, "Completed")), ReplicaState.EXITED, 0),
    "it never ends, and the program fails": (with_added(beside(PROXY, RUNNING), ended(3)), ReplicaState.EXITED, 3),
    "it has failed": (with_added(beside(PROXY, ended(1)), RUNNING), ReplicaState.RUNNING, None),
    "it is out of memory": (with_added(beside(PROXY, ended(137, "OOMKilled")), RUNNING), ReplicaState.RUNNING, None),
    "its image is not there": (
        with_added(beside(PROXY, waiting("ErrImagePull", "manifest unknown")), RUNNING),
        ReplicaState.RUNNING,
        None,
    ),
    "it runs before, for ever": (
        with_added(beside(PROXY, RUNNING, started=True), RUNNING, before=True, endless=True),
        ReplicaState.RUNNING,
        None,
    ),
    "it runs before, for ever, and the program ends": (
        with_added(beside(PROXY, RUNNING, started=True), ended(4), before=True, endless=True),
        ReplicaState.EXITED,
        4,
    ),
    "it runs before, and is killed with the pod": (
        with_added(beside(PROXY, ended(137)), ended(0), before=True, endless=True, phase="Failed"),
        ReplicaState.EXITED,
        0,
    ),
    "it is set up before": (
        with_added(beside("istio-init", RUNNING), waiting("PodInitializing"), before=True, phase="Pending"),
        ReplicaState.STARTING,
        None,
    ),
    "its image before is not there": (
        with_added(
            beside("istio-init", waiting("ErrImagePull", "manifest unknown")), waiting("PodInitializing"), before=True
        ),
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
    absent = waiting("ErrImagePull", "manifest unknown")
    body = with_added(beside(PROXY, RUNNING, started=True), absent, before=True, endless=True, phase="Pending")
    end = state_of(body).exit
    assert end is not None
    assert end.reason is Reason.IMAGE_FAILED


def test_added_container_that_fails_before_the_program_is_named_and_not_the_jobs_fault() -> None:
    body = with_added(beside("istio-init", ended(1)), waiting("PodInitializing"), before=True, phase="Failed")
    end = state_of(body).exit
    assert end is not None
    assert (end.code, end.reason) == (None, Reason.HOST_FAILED)
    assert end.message == "The container istio-init, which the cluster has added to its pod, failed: exit code 1."
