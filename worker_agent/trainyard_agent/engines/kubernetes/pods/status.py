"""State of a replica, from the status of its pod. Pure.

A replica is the container of its program: those that a cluster adds to its pod, as a service mesh does, neither start
nor end it, unless one that must complete before it fails.
The table of reasons is in `exit_of` and `_REFUSED`; docs/how-to/kubernetes.md has it in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard_agent.engines.kubernetes.pods import peers
from trainyard_agent.engines.kubernetes.pods.objects import CONTAINER
from trainyard_agent.engines.kubernetes.staging import installation
from trainyard_agent.runtimes.exits import message_of_code, never_ran, preempted_exit
from trainyard_agent.staging import image_errors
from trainyard_protocol.states import Reason, ReplicaState, reason_of_exit
from trainyard_protocol.wire.sync import ExitReport

_TAKEN_AWAY = {
    ("DisruptionTarget", "PreemptionByScheduler"): "The scheduler gave its place to a pod of higher priority.",
    ("DisruptionTarget", "EvictionByEvictionAPI"): "Its pod was evicted, as when its node is drained.",
}
_BY_KUEUE = ("WorkloadEvicted", "WorkloadDeleted", "NotAdmitted", "NoMatchingWorkload")
_NOT_READY = "WorkloadEvictedDueToPodsReadyTimeout"
_TAINTED, _NODE_GONE = "DeletionByTaintManager", "DeletionByPodGC"
_SHUTDOWN = {"Terminated", "NodeShutdown", "Shutdown"}
_NO_PROGRAM = {"StartError", "ContainerCannotRun"}
_UNSEEN = {"ContainerStatusUnknown", "Unknown"}
"""Of the kubelet, and of containerd, whose exit code is then 255."""
_REFUSED_IMAGE = {"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed"}
_PULLING = {"ErrImagePull", "ImagePullBackOff"}
_NO_START = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_NO_FILE = ("executable file not found", "no such file or directory", "permission denied", "no command specified")
_ROOT = "runAsNonRoot"
_NO_ROOM = "OutOf"  # OutOfcpu, OutOfmemory, OutOfpods: its node was full when the pod came
_DEADLINE = "DeadlineExceeded"  # activeDeadlineSeconds, which a policy of the cluster sets
_LATE = timedelta(seconds=30)
"""After the end of its grace period: some kubelets never confirm the end of a pod that had no container."""

_OF_THE_JOB = (CONTAINER, installation.CONTAINER)
"""Containers whose images are the job's."""

_DELETED = "Its pod was deleted before it ran, and not by Trainyard."
_OTHERS = "ContainerCreating", "PodInitializing"


@dataclass(frozen=True, slots=True)
class PodState:
    """State of a replica. `exit` without the effects of a stop; `waits`: why it has not started."""

    state: ReplicaState
    started_at: datetime | None = None
    exit: ExitReport | None = None
    waits: str = ""


def state_of(pod: Mapping[str, Any], memory_bytes: int = 0) -> PodState:
    """The state by the pod alone."""
    own = _container(pod)
    state = own.get("state") or {}
    started = parse_time((state.get("running") or state.get("terminated") or {}).get("startedAt"))
    ended = exit_of(pod, memory_bytes)
    if ended is not None:
        if ended.reason is Reason.START_FAILED:
            started = None
        elif started is not None and ended.finished_at < started:
            ended = ended.model_copy(update={"finished_at": started})
        return PodState(ReplicaState.EXITED, started, ended)
    if "running" in state:
        return PodState(ReplicaState.RUNNING, started)
    at = _current(pod)
    waiting = (at.get("state") or {}).get("waiting") or {}
    failure = installation.failure(pod)
    if at.get("name") in _OF_THE_JOB:
        failure = _start_failure(waiting) or failure
    if failure is not None:
        return PodState(ReplicaState.EXITED, exit=never_ran(*failure, datetime.now(UTC)))
    waits = installation.activity(pod) or peers.waits(pod) or _waits(pod, waiting)
    return PodState(ReplicaState.STARTING, waits=waits)


def exit_of(pod: Mapping[str, Any], memory_bytes: int = 0) -> ExitReport | None:
    """The end of a pod that the engine has ended, or that ended by itself."""
    status, own = pod.get("status") or {}, _container(pod)
    failed = status.get("phase") in ("Failed", "Succeeded")
    ended = (own.get("state") or {}).get("terminated")
    if ended is None and failed:  # killed with its pod, the kubelet had no time to look
        ended = (own.get("lastState") or {}).get("terminated")
    if ended is None and not failed:
        return _unconfirmed(pod)
    code = None if ended is None or ended.get("reason") in _UNSEEN else int(ended["exitCode"])
    finished_at = (parse_time(ended.get("finishedAt")) if ended and code is not None else None) or datetime.now(UTC)
    if (unmet := installation.failure(pod) or peers.failure(pod) or _added_failure(pod)) is not None:
        return never_ran(*unmet, finished_at)
    taken = _taken_away(pod, code, finished_at) or _ended_by_node(status, code, finished_at)
    if taken is not None and code != 0:
        return taken
    if ended is not None and ended.get("reason") in _NO_PROGRAM:
        return never_ran(
            Reason.START_FAILED, _sentence(ended.get("message"), "Its program cannot be executed"), finished_at
        )
    if code is None:
        message = _sentence(status.get("message"), "It ended while its node was down, and its exit code is not known")
        if _current(pod) is not own and pod["metadata"].get("deletionTimestamp"):
            message = _DELETED
        return ExitReport(code=None, reason=Reason.VANISHED, message=message, finished_at=finished_at)
    if ended is not None and ended.get("reason") == "OOMKilled":
        message = f"Its memory limit is {memory_bytes / 1e9:.3g} GB." if memory_bytes else ""
        return ExitReport(code=code, reason=Reason.OUT_OF_MEMORY, message=message, finished_at=finished_at)
    reason, message = reason_of_exit(code), message_of_code(code)
    if reason is Reason.KILLED_BY_SIGNAL and pod["metadata"].get("deletionTimestamp"):
        message = f"Its pod was deleted, and not by Trainyard: {message[0].lower()}{message[1:]}"
    return ExitReport(code=code, reason=reason, message=message, finished_at=finished_at)


def is_taken_away(pod: Mapping[str, Any]) -> bool:
    """Whether the engine ends it for other work, whatever its program does."""
    return _taken_away(pod, None, datetime.now(UTC)) is not None


def has_begun(pod: Mapping[str, Any]) -> bool:
    """Whether there is a container to read a log of."""
    state = _container(pod).get("state") or {}
    return "running" in state or "terminated" in state


def start_time(pod: Mapping[str, Any]) -> str:
    """When its container was started, as the API has it; "" if it was not."""
    state = _container(pod).get("state") or {}
    return str((state.get("running") or state.get("terminated") or {}).get("startedAt") or "")


def parse_time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((status for status in statuses if status["name"] == CONTAINER), {})


def _current(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that the pod is at: one of those before the program that has not completed, or the program's. One
    that is restarted for ever runs beside the program once it has started."""
    own = _container(pod)
    if has_begun(pod):
        return own
    beside = {c["name"] for c in pod["spec"].get("initContainers") or () if c.get("restartPolicy") == "Always"}
    before = (pod.get("status") or {}).get("initContainerStatuses") or ()
    return next((status for status in before if not _lets_pass(status, status["name"] in beside)), own)


def _lets_pass(status: Mapping[str, Any], is_beside: bool) -> bool:
    """Whether the next container may start."""
    state = status.get("state") or {}
    if is_beside:
        return "running" in state and bool(status.get("started", True))
    return (state.get("terminated") or {}).get("exitCode") == 0


def _added_failure(pod: Mapping[str, Any]) -> tuple[Reason, str] | None:
    """The failure of a container that the cluster has added and that must complete before the program."""
    at = _current(pod)
    ended = (at.get("state") or {}).get("terminated") or {}
    over = pod["metadata"].get("deletionTimestamp") or (pod.get("status") or {}).get("reason")
    if at.get("name") in (*_OF_THE_JOB, peers.CONTAINER) or not ended.get("exitCode") or over:
        return None
    words = str(ended.get("message") or f"exit code {ended['exitCode']}").strip().rstrip(".")
    return Reason.HOST_FAILED, f"The container {at['name']}, which the cluster has added to its pod, failed: {words}."


def _condition(pod: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _taken_away(pod: Mapping[str, Any], code: int | None, at: datetime) -> ExitReport | None:
    """Preempted, drained, or evicted from a queue of Kueue."""
    for kind in ("DisruptionTarget", "TerminationTarget"):
        state = _condition(pod, kind)
        reason = str(state.get("reason") or "")
        if state.get("status") != "True":
            continue
        if (kind, reason) in _TAKEN_AWAY:
            return preempted_exit(code, at, _TAKEN_AWAY[kind, reason])
        if kind == "TerminationTarget" and reason == _NOT_READY:  # as a start deadline of ours
            message = _sentence(state.get("message"), "Kueue took its place away: it did not start in time")
            return ExitReport(code=code, reason=Reason.GIVEN_BACK, message=message, finished_at=at)
        if kind == "TerminationTarget" and reason.startswith(_BY_KUEUE):
            return preempted_exit(code, at, _sentence(state.get("message"), "Kueue took its place away"))
    if (pod.get("status") or {}).get("reason") == "Preempting":
        return preempted_exit(code, at, "Its node gave its place to a pod of higher priority.")
    return None


def _ended_by_node(status: Mapping[str, Any], code: int | None, at: datetime) -> ExitReport | None:
    """Evicted for pressure, shut down, refused or lost with its node."""
    target = _condition({"status": status}, "DisruptionTarget").get("reason")
    reason, why = status.get("reason"), status.get("message")
    if reason in _SHUTDOWN:
        cause = Reason.HOST_SHUTDOWN, _sentence(why, "Its node was shut down")
    elif reason == "NodeLost" or target in (_NODE_GONE, _TAINTED):
        cause = Reason.HOST_LOST, _sentence(why, "Its node was lost")
    elif reason == _DEADLINE:
        cause = Reason.TIME_LIMIT, _sentence(why, "It was active for longer than the cluster allows")
    elif str(reason or "").startswith(_NO_ROOM):
        cause = Reason.GIVEN_BACK, _sentence(why, f"Its node had no room for it ({reason})")
    elif reason:  # Evicted, UnexpectedAdmissionError and more
        cause = Reason.HOST_FAILED, _sentence(why, f"Its node ended it ({reason})")
    else:
        return None
    return ExitReport(code=code, reason=cause[0], message=cause[1], finished_at=at)


def _unconfirmed(pod: Mapping[str, Any]) -> ExitReport | None:
    """The end of a deleted pod that only our finalizer keeps and whose kubelet says nothing more: it never ran, or it
    was deleted by force, as with a node that was removed."""
    metadata = pod["metadata"]
    state = _current(pod).get("state") or {}
    no_node = not pod["spec"].get("nodeName")
    if not metadata.get("deletionTimestamp"):
        return None
    is_forced = metadata.get("deletionGracePeriodSeconds") == 0
    is_late = datetime.now(UTC) - datetime.fromisoformat(metadata["deletionTimestamp"]) > _LATE
    if "running" in state:
        if not is_forced or not is_late:
            return None
        # Whoever deletes a pod by force says that it does not run any more.
        message = f"Its pod was deleted by force, and {pod['spec'].get('nodeName')} has not said since that it ended."
        return ExitReport(code=None, reason=Reason.HOST_LOST, message=message, finished_at=datetime.now(UTC))
    failing = (state.get("waiting") or {}).get("reason") in _PULLING | _NO_START  # no container, and now no more tries
    if not (no_node or failing or is_late or is_forced):
        return None
    now = datetime.now(UTC)
    taken = _taken_away(pod, None, now)
    return taken or never_ran(Reason.VANISHED, _DELETED, now)


def _start_failure(waiting: Mapping[str, Any]) -> tuple[Reason, str] | None:
    """The reason why it will never start; None while that is not sure."""
    reason, message = waiting.get("reason"), str(waiting.get("message") or "")
    if reason in _REFUSED_IMAGE:
        return Reason.IMAGE_FAILED, _sentence(message, str(reason))
    if reason in _PULLING and image_errors.cause(message) is image_errors.PullCause.REFUSED:
        return Reason.IMAGE_FAILED, _sentence(message, str(reason))
    if reason in _NO_START and _ROOT in message:
        return Reason.REFUSED, _sentence(message, str(reason))
    if reason in _NO_START and any(word in message for word in _NO_FILE):
        return Reason.START_FAILED, _sentence(message, str(reason))
    return None


def _waits(pod: Mapping[str, Any], waiting: Mapping[str, Any]) -> str:
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason") or "no node yet").rstrip(".")
    reason, message = str(waiting.get("reason") or ""), str(waiting.get("message") or "")
    if not reason:
        return "its node has not begun" if pod["spec"].get("nodeName") else "the scheduler has not seen it yet"
    if reason in _OTHERS:
        return f"its container is made on {pod['spec'].get('nodeName', 'its node')}"
    return f"{reason}: {message}" if message else reason


def _sentence(text: object, otherwise: str) -> str:
    return f"{(str(text or '').strip() or otherwise).rstrip('.')}."
