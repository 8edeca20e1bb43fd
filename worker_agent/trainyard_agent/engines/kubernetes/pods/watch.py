"""The pods of an agent as last seen: listed, then watched."""

import logging
import threading
from collections.abc import Callable

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeObject

_RETRY_S = 1.0
_GONE = 410  # the versions in between are no longer known

_log = logging.getLogger(__name__)


class PodWatch:
    """The pods with some labels, kept up to date by a thread. What is written is put into it, so that it is never older
    than what this process has done."""

    def __init__(self, client: KubeClient, selector: str, changed: Callable[[KubeObject], None]) -> None:
        """`changed` is called with each version of a pod."""
        self._client, self._selector, self._changed = client, selector, changed
        self._lock = threading.Condition()
        self._pods: dict[str, KubeObject] = {}
        self._forgotten: set[str] = set()
        self._closing = threading.Event()
        self._last_error = ""
        self._seen = 0  # the version of the last list or event
        self._thread = threading.Thread(target=self._run, daemon=True, name="watch of pods")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            self._lock.notify_all()

    def get(self, name: str) -> KubeObject | None:
        with self._lock:
            return self._pods.get(name)

    def put(self, pod: KubeObject) -> None:
        """Keep this version of a pod, unless a newer one is known."""
        with self._lock:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            held = self._pods.get(name)
            same = held is not None and held["metadata"]["uid"] == uid
            if uid in self._forgotten or (same and held is not None and _version(held) >= _version(pod)):
                return
            self._pods[name] = pod
            self._changed(pod)
            self._lock.notify_all()

    def forget(self, pod: KubeObject) -> None:
        """Drop a pod that is gone; later events for it are ignored."""
        with self._lock:
            self._forgotten.add(pod["metadata"]["uid"])
            held = self._pods.get(pod["metadata"]["name"])
            if held is not None and held["metadata"]["uid"] == pod["metadata"]["uid"]:
                del self._pods[pod["metadata"]["name"]]
            self._lock.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait for a change, for so long at most."""
        with self._lock:
            self._lock.wait(seconds)

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                version = self._list()
                while not self._closing.is_set():
                    version = self._follow(version)
            except KubeError as error:
                is_new = error.message != self._last_error and not self._closing.is_set()
                if is_new and getattr(error, "status", 0) != _GONE:  # of 410 nothing is lost: it is listed again
                    _log.warning("pods are not seen now, trying again: %s", error.message)
                self._last_error = error.message
                self._closing.wait(_RETRY_S)
            except Exception:  # noqa: BLE001 - nothing would be seen any more
                _log.exception("pods are not seen now, trying again")
                self._closing.wait(_RETRY_S)

    def _list(self) -> str:
        pods, version = self._client.list("pods", self._selector)
        self._last_error = ""
        with self._lock:
            names = {pod["metadata"]["name"] for pod in pods}
            if int(version) < self._seen:
                _log.warning("the cluster's store went back to an earlier state, as after a restore")
                self._pods.clear()
                self._forgotten.clear()
            self._seen = int(version)
            for name, pod in list(self._pods.items()):
                if name not in names and _version(pod) <= int(version):
                    del self._pods[name]
            self._forgotten &= {pod["metadata"]["uid"] for pod in pods}
        for pod in pods:
            self.put(pod)
        return version

    def _follow(self, version: str) -> str:
        for kind, changed in self._client.watch("pods", self._selector, version):
            version = str(changed["metadata"]["resourceVersion"])
            self._seen = int(version)
            if kind == "DELETED":
                self.forget(changed)
            elif kind != "BOOKMARK":
                self.put(changed)
            if self._closing.is_set():
                break
        return version


def _version(pod: KubeObject) -> int:
    """Versions of one kind are numbers that grow."""
    return int(pod["metadata"]["resourceVersion"])
