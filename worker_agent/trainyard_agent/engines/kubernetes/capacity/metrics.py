"""Usage of pods by the API metrics.k8s.io, which metrics-server and others serve."""

import threading
import time
from collections.abc import Mapping
from typing import Any

from trainyard_agent.engines.kubernetes.api.client import KubeClient
from trainyard_agent.engines.kubernetes.capacity.capacity import quantity
from trainyard_agent.engines.kubernetes.pods.objects import CONTAINER
from trainyard_agent.runtimes.use import ReplicaUse

GROUP = "metrics.k8s.io"
_KEEP_S = 4.0  # they are measured every 15 s or so, and all pods of a round are asked for one after the other


class PodMetrics:
    """The usage of all pods with some labels, read together."""

    def __init__(self, client: KubeClient, selector: str, keep_s: float = _KEEP_S) -> None:
        self._client, self._selector, self._keep_s = client, selector, keep_s
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._found: Mapping[str, ReplicaUse] = {}

    def use(self, pod: str) -> ReplicaUse | None:
        """The usage of a pod's program; None where it was not measured yet. Raises KubeError."""
        with self._lock:
            if time.monotonic() > self._read_at + self._keep_s:
                self._found = uses(self._client.pod_metrics(self._selector))
                self._read_at = time.monotonic()
            return self._found.get(pod)


def uses(metrics: list[dict[str, Any]]) -> dict[str, ReplicaUse]:
    """The usage of each pod's program, by the name of the pod."""
    return {
        pod["metadata"]["name"]: ReplicaUse(
            0.0, int(quantity(container["usage"]["memory"])), quantity(container["usage"]["cpu"])
        )
        for pod in metrics
        for container in pod["containers"]
        if container["name"] == CONTAINER
    }
