"""The permissions of the agent in its namespace, as the rules of a Role."""

from typing import Any


def _rule(resources: list[str], *verbs: str, group: str = "") -> dict[str, Any]:
    return {"apiGroups": [group], "resources": resources, "verbs": list(verbs)}


RULES = [
    _rule(["pods"], "get", "list", "watch", "create", "patch", "delete"),
    _rule(["pods/log"], "get"),
    # `jobs exec`, `shell` and `port-forward`. A WebSocket begins with a GET; newer clusters ask for `create` as well.
    _rule(["pods/exec", "pods/portforward"], "get", "create"),
    _rule(["configmaps"], "get", "list", "create", "patch", "delete"),
    _rule(["services"], "create", "get", "delete"),
    # Whoever may create pods can read each secret of the namespace through one, so these add nothing to it.
    _rule(["secrets"], "create", "get", "delete"),
    _rule(["resourcequotas"], "list"),
    _rule(["pods"], "list", group="metrics.k8s.io"),
    # Where the cluster has Kueue.
    _rule(["workloads"], "list", group="kueue.x-k8s.io"),
    _rule(["localqueues"], "get", "list", group="kueue.x-k8s.io"),
]
"""No nodes, and nothing outside the namespace."""

CAPACITY_RULES = [_rule(["nodes"], "list"), _rule(["pods"], "list")]
"""In the whole cluster, where its administrators allow it: the room on nodes beside other people's pods."""
