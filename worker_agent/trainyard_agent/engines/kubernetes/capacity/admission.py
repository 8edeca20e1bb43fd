"""Admission of gangs: who sees to it that the pods of a run start together.

Kueue, where the operator names a LocalQueue; else nobody, and a part of a gang that gets no room is given back by the
start deadline. Never two queues: they starve each other.
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeObject, KubeRefused
from trainyard_agent.engines.kubernetes.pods.objects import run_name
from trainyard_protocol.states import Reason
from trainyard_protocol.wire.sync import RunOrder

KUEUE = "kueue.x-k8s.io/"
QUEUE, GROUP, MANAGED = KUEUE + "queue-name", KUEUE + "pod-group-name", KUEUE + "managed"
TOTAL, RETRIABLE, PRIORITY = (
    KUEUE + name for name in ("pod-group-total-count", "retriable-in-group", "priority-class")
)

_KUEUE_VERSIONS = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
_EVERY_S = 5.0
_FORBIDDEN = 403
_NO_QUEUE = re.compile(r"Queue \S+ (?:doesn't|does not) exist")
_SURE_S = 30.0
"""So long a queue must be missing: a Kueue that has just started may not know it yet."""

_log = logging.getLogger(__name__)


class NotAdmitted(Exception):
    """Pods that somebody else queues than the operator, or their job, says."""

    def __init__(self, message: str, reason: Reason = Reason.HOST_FAILED) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class GangAdmission:
    """No admission: each pod is scheduled by itself. `about`: a few words for the operator."""

    about: str = ""

    def member(self, order: RunOrder, pod: KubeObject) -> KubeObject:
        """The pod as one of its run's gang. Raises NotAdmitted for a job that names a queue."""
        if queue := order.training_input.engine_options.kubernetes.queue:
            use = "which the agent does not use: start it with --local-queue."
            raise NotAdmitted(f"The job names the queue {queue} of Kueue, {use}", Reason.REFUSED)
        return pod

    def check(self, created: KubeObject) -> None:
        """Raises NotAdmitted if the cluster has made of a pod what this does not expect."""
        if _is_managed(created):
            raise NotAdmitted(
                "Kueue queues the pods of the agent's namespace, each separately: name its LocalQueue with "
                "--local-queue."
            )

    def waits(self, run_id: str, pod: Mapping[str, Any]) -> str:  # noqa: ARG002
        """The reason why the gang of this pod is not admitted; "" once it is."""
        return ""

    def refusal(self, run_id: str) -> str:  # noqa: ARG002
        """The reason why a gang that waits will never be admitted, in a sentence; "" if it may be."""
        return ""


@dataclass(slots=True)
class LocalQueue(GangAdmission):
    """A queue of Kueue: each run is one of its pod groups, and has one life: Kueue makes no pods.

    `classes`: the WorkloadPriorityClass of jobs from a priority on. `workloads` reads the Workloads of the namespace.
    """

    name: str = ""
    classes: Mapping[int, str] = field(default_factory=dict)
    workloads: Callable[[], Sequence[Mapping[str, Any]]] = list
    clock: Callable[[], float] = time.monotonic
    _reasons: dict[str, str] = field(default_factory=dict)
    _missing_since: dict[str, float] = field(default_factory=dict)
    """The first (monotonic) time at which Kueue said of a Workload that a queue of it is not there."""
    _unread: str = ""
    _read_at: float = float("-inf")

    def member(self, order: RunOrder, pod: KubeObject) -> KubeObject:
        metadata, asked = pod["metadata"], order.training_input.engine_options.kubernetes.queue
        labels = {**metadata["labels"], QUEUE: asked or self.name, GROUP: run_name(order.run_id)}
        if lowest := [least for least in self.classes if least <= order.priority]:
            labels[PRIORITY] = self.classes[max(lowest)]
        annotations = {
            **metadata["annotations"],
            TOTAL: str(len(order.replicas)),
            RETRIABLE: "false",  # nobody makes a pod again: the group has ended when all of its pods have
        }
        return {**pod, "metadata": {**metadata, "labels": labels, "annotations": annotations}}

    def check(self, created: KubeObject) -> None:
        if not _is_managed(created):
            raise NotAdmitted(
                "Kueue does not queue the pods of the agent's namespace: enable its integration `pod`, and let its "
                "managedJobsNamespaceSelector match the namespace; or start the agent without --local-queue."
            )

    def waits(self, run_id: str, pod: Mapping[str, Any]) -> str:
        if not pod["spec"].get("schedulingGates"):
            return ""
        if self.clock() - self._read_at >= _EVERY_S:
            self._read_at = self.clock()
            self._read_reasons()
        reason = self._reasons.get(run_name(run_id), self._unread or "Kueue has made no Workload of it yet")
        name = pod["metadata"]["labels"].get(QUEUE, self.name)
        return f"in the LocalQueue {name}: {reason or 'admitted, and about to start'}"

    def refusal(self, run_id: str) -> str:
        name = run_name(run_id)
        if self.clock() - self._missing_since.get(name, float("inf")) < _SURE_S:
            return ""
        return f"{self._reasons[name]}." if name in self._missing_since else ""

    def _read_reasons(self) -> None:
        """Those of before stay while the API server does not answer."""
        try:
            items = self.workloads()
        except KubeRefused as refused:
            self._reasons, self._unread = {}, f"why is not known ({refused.message})"
        except KubeError as error:
            _log.warning("the Workloads of Kueue are not read now: %s", error)
        else:
            self._reasons, self._unread = {item["metadata"]["name"]: waits_of(item) for item in items}, ""
            self._missing_since = {
                name: self._missing_since.get(name, self.clock())
                for name, reason in self._reasons.items()
                if _NO_QUEUE.search(reason)
            }


def waits_of(workload: Mapping[str, Any]) -> str:
    """The reason why Kueue has not admitted a Workload, in its words; "" if it has."""
    status = workload.get("status") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or ()}

    def holds(kind: str) -> bool:
        return (conditions.get(kind) or {}).get("status") == "True"

    if holds("Admitted"):
        return ""
    if workload["spec"].get("active") is False:
        return _words(conditions.get("Evicted"), "its Workload was deactivated")
    if holds("QuotaReserved"):
        checks = [
            f"{check['name']} {check['state']}" + (f" ({check['message']})" if check.get("message") else "")
            for check in status.get("admissionChecks") or ()
            if check.get("state") != "Ready"
        ]
        return f"quota is reserved, admission checks: {', '.join(checks) or 'not done yet'}"
    return _words(conditions.get("QuotaReserved"), "others are before it")


def choose(client: KubeClient, local_queue: str, classes: Mapping[int, str]) -> GangAdmission:
    """The admission that the operator asks for. Raises KubeError, NotAdmitted."""
    if not local_queue:
        return GangAdmission()
    version = next((served for served in _KUEUE_VERSIONS if client.has(served, "workloads")), "")
    if not version:
        raise NotAdmitted(f"--local-queue {local_queue}: the cluster has no Kueue, or one that is older than v1beta1.")
    for kind in ("workloads", "localqueues"):
        client.serve(kind, f"/apis/{version}")
    if problem := missing_queue(client, local_queue):
        raise NotAdmitted(problem)
    return LocalQueue(
        f"LocalQueue {local_queue} of Kueue", local_queue, classes, lambda: client.list("workloads", "")[0]
    )


def missing_queue(client: KubeClient, name: str) -> str:
    """A sentence about a LocalQueue that is not in the namespace; "" if it is, or if the agent may not look. Kueue has
    been found before. Raises KubeError."""
    try:
        if client.get("localqueues", name) is not None:
            return ""
        names = sorted(str(queue["metadata"]["name"]) for queue in client.list("localqueues", "")[0])
    except KubeRefused as refused:
        if refused.status != _FORBIDDEN:
            raise
        return ""
    there = f"There are: {', '.join(names)}." if names else "There is none: make one."
    return f"--local-queue {name}: the namespace {client.namespace} has no such LocalQueue. {there}"


def _is_managed(pod: KubeObject) -> bool:
    return (pod["metadata"].get("labels") or {}).get(MANAGED) == "true"


def _words(condition: Mapping[str, Any] | None, otherwise: str) -> str:
    return str((condition or {}).get("message") or otherwise).rstrip(".")
