"""Removal of a run's pods. A pod is let go of once its kubelet has said that it ended."""

from concurrent.futures import ThreadPoolExecutor

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeObject, KubeRefused
from trainyard_agent.engines.kubernetes.capacity.admission import MANAGED
from trainyard_agent.engines.kubernetes.pods import objects
from trainyard_agent.engines.kubernetes.pods.objects import PodOwner
from trainyard_agent.engines.kubernetes.pods.status import has_begun, state_of
from trainyard_agent.engines.kubernetes.pods.watch import PodWatch
from trainyard_agent.host.waiting import deadline_in, wait_until
from trainyard_agent.runtimes.base import EngineUnavailable

_REMOVE_S = 60.0
_PAUSE_S = 0.1
_CONFLICT = 409
_FINALIZERS = (objects.FINALIZER, MANAGED)
"""Ours, and Kueue's, which keeps a pod until its group has ended: one that never ran keeps the group for ever. With its
last pod a group goes, and its Workload with it."""


class NotRemoved(EngineUnavailable):
    """Pods of a run whose end no kubelet has confirmed."""


class PodRemoval:
    """`pool`: threads for the pods of a gang."""

    def __init__(self, client: KubeClient, owner: PodOwner, watch: PodWatch, pool: ThreadPoolExecutor) -> None:
        self._client, self._owner, self._watch, self._pool = client, owner, watch, pool

    def remove(self, run_id: str) -> int:
        """Kill the run's pods, and let go of each once its kubelet has said that it ended. Returns how many there were.
        Raises NotRemoved."""
        pods = self._held(run_id)
        count = len(pods)

        def is_removed() -> bool:
            nonlocal pods
            list(self._pool.map(self._remove_pod, pods))
            pods = self._held(run_id) if pods else []
            return not pods

        if not wait_until(is_removed, deadline_in(_REMOVE_S), _PAUSE_S, self._watch.wait):
            nodes = ", ".join(sorted({pod["spec"].get("nodeName") or "no node" for pod in pods}))
            raise NotRemoved(f"the end of pods of run {run_id} is not confirmed ({nodes})")
        return count

    def _held(self, run_id: str) -> list[KubeObject]:
        """The run's pods whose end is not confirmed, or that our finalizer keeps. One that only finalizers of others
        keep has ended, and is theirs."""
        pods, _ = self._client.list("pods", self._owner.selector_of(run_id))
        return [
            pod
            for pod in pods
            if objects.FINALIZER in (pod["metadata"].get("finalizers") or ()) or state_of(pod).exit is None
        ]

    def _remove_pod(self, pod: KubeObject) -> None:
        metadata = pod["metadata"]
        name = metadata["name"]
        grace = metadata.get("deletionGracePeriodSeconds")
        ran = has_begun(pod) or pod["spec"].get("nodeName")
        ended = state_of(pod).exit is not None
        if not metadata.get("deletionTimestamp") or (grace is not None and grace > 1):
            self._client.delete("pods", name, 1)
        if metadata.get("deletionTimestamp") and (ended or not ran):
            others = [item for item in metadata.get("finalizers") or () if item not in _FINALIZERS]
            letting_go = {"finalizers": others or None, "resourceVersion": metadata["resourceVersion"]}
            try:
                self._client.patch("pods", name, {"metadata": letting_go})
            except KubeRefused as refused:
                if refused.status != _CONFLICT:
                    raise
                return  # it has just changed, so its finalizers may have: it is listed again
            self._client.delete("pods", name, 0)  # it has ended: nobody need wait for its kubelet
            self._watch.forget(pod)
