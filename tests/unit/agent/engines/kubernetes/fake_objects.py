"""The objects of a namespace in memory, for what needs no cluster."""

from collections.abc import Callable
from typing import Any

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeDown, KubeRefused


class FakeObjects(KubeClient):
    """Objects by kind and name. `before_patch` is called before each patch."""

    def __init__(self) -> None:
        self.namespace, self.server = "ns", "fake"
        self.found: dict[tuple[str, str], dict[str, Any]] = {}
        self.down = False
        self.before_patch: Callable[[], None] = lambda: None
        self._version = 0

    def close(self) -> None:
        """Nothing is open."""

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        if self.down:
            raise KubeDown("down")
        return self.found.get((kind, name))

    def create(self, kind: str, body: dict[str, Any]) -> dict[str, Any]:
        key = kind, body["metadata"]["name"]
        if self.get(*key) is None:
            self._put(key, body)
        return self.found[key]

    def patch(self, kind: str, name: str, body: dict[str, Any]) -> dict[str, Any] | None:
        self.before_patch()
        known = self.get(kind, name)
        assert known is not None
        if body["metadata"]["resourceVersion"] != known["metadata"]["resourceVersion"]:
            raise KubeRefused(409, "changed")
        self._put((kind, name), {**known, "spec": {**known["spec"], **body["spec"]}})
        return self.found[kind, name]

    def _put(self, key: tuple[str, str], body: dict[str, Any]) -> None:
        self._version += 1
        metadata = {**body["metadata"], "resourceVersion": str(self._version)}
        self.found[key] = {**body, "metadata": metadata}
