"""Capacity of a cluster for replicas: of `--pool`, of nodes beside what other pods request, or of a quota. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from trainyard_agent.engines.kubernetes.pods.objects import AGENT
from trainyard_agent.host.accelerators import gpu_type
from trainyard_protocol.job.resources import GIGABYTE, Capacity, Pool

Amounts = Mapping[str, float]
"""CPUs, bytes and devices, by the name of the resource."""

_UNITS = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    **{unit: 10.0 ** (3 * n) for n, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": 2.0 ** (10 * n) for n, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?)(?:[eE](\d+)|([num]|[kMGTPE]|[KMGTPE]i))?")
_POOL = re.compile(r"(\d{1,5})x(\d{1,4})x(\d{1,5}(?:\.\d+)?)(?:\+(\d{1,3})x([A-Za-z0-9_]{1,64}))?")

_GPUS = "nvidia.com/gpu"
_GPU_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator")
_MEMORY_STEP = 10**8  # so that nodes of one shape stay one pool beside the small differences of other pods
_CLOSING = ("NoSchedule", "NoExecute")


def parse_pool(text: str) -> Pool:
    """`4x16x64`: 4 nodes, each with 16 vCPU and 64 GB; `4x16x64+2xNVIDIA_TESLA_T4`: and with 2 accelerators. Raises
    ValueError."""
    match = _POOL.fullmatch(text)
    if match is None or not int(match[1]) or not int(match[2]) or not float(match[3]):
        raise ValueError(
            "must look like 4x16x64 (nodes, vCPU and GB of each) or 4x16x64+2xNVIDIA_TESLA_T4 (and 2 accelerators); "
            f"this is {text!r}"
        )
    return Pool(
        nodes=int(match[1]),
        vcpus=int(match[2]),
        memory_bytes=int(float(match[3]) * GIGABYTE),
        accelerator_type=(match[5] or "").upper(),
        accelerator_count=int(match[4] or 0),
    )


def quantity(text: str) -> float:
    """`1900m`, `16Gi` -> a number. Raises ValueError."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"not a quantity: {text!r}")
    return float(match[1]) * 10.0 ** int(match[2] or 0) * _UNITS.get(match[3] or "", 1.0)


def is_open(node: Mapping[str, Any]) -> bool:
    """Whether pods may start on the node: it is ready, and has no taints but for the accelerators that it has."""
    conditions = node["status"].get("conditions") or ()
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    spec = node.get("spec") or {}
    taints = [taint for taint in spec.get("taints") or () if taint["effect"] in _CLOSING and taint["key"] != _GPUS]
    return ready and not spec.get("unschedulable") and not taints


def capacity_of(nodes: Iterable[Mapping[str, Any]], taken: Mapping[str, Amounts]) -> Capacity:
    """The room on the nodes that are open, by shape. `taken`: amounts that are not free, by name of the node."""
    shapes = Counter(_shape(node, taken.get(node["metadata"]["name"], {})) for node in nodes if is_open(node))
    pools = (shape.model_copy(update={"nodes": count}) for shape, count in shapes.items())
    there = [pool for pool in pools if pool.vcpus and pool.memory_bytes]
    return Capacity.of_pools(
        *sorted(there, key=lambda pool: (pool.accelerator_count, pool.vcpus, pool.memory_bytes, pool.accelerator_type))
    )


def taken_by_others(pods: Iterable[Mapping[str, Any]], namespace: str) -> dict[str, Amounts]:
    """The requests by node of all pods that are not ours."""
    taken: dict[str, Amounts] = {}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and is_alive(pod) and not is_ours(pod, namespace):
            taken[node] = _sum(taken.get(node, {}), requests_of(pod))
    return taken


def is_alive(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")


def is_ours(pod: Mapping[str, Any], namespace: str) -> bool:
    metadata = pod["metadata"]
    return metadata["namespace"] == namespace and AGENT in (metadata.get("labels") or {})


def requests_of(pod: Mapping[str, Any]) -> Amounts:
    """The requests of a pod as the scheduler counts them: of its containers together, or of one that runs before them,
    if that is more."""
    spec = pod["spec"]
    beside: Amounts = _amounts(spec.get("overhead") or {})
    most: Amounts = {}
    for container in spec.get("initContainers") or ():
        with_this = _sum(beside, _requests(container))
        most = _larger(most, with_this)
        if container.get("restartPolicy") == "Always":
            beside = with_this
    return _larger(most, _sum(beside, *map(_requests, spec["containers"])))


def quota_of(quotas: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]], namespace: str) -> Capacity | None:
    """The room that quotas of the namespace leave us, as one node; None if they do not limit CPU and memory. Quotas of
    some pods only, by scopes, are not counted."""
    ours = _sum(*(requests_of(pod) for pod in pods if is_alive(pod) and is_ours(pod, namespace)))
    rooms: dict[str, list[float]] = {"cpu": [], "memory": []}
    for quota in quotas:
        spec, used = quota["spec"], quota.get("status", {}).get("used") or {}
        if spec.get("scopes") or spec.get("scopeSelector"):
            continue
        for name, hard in (spec.get("hard") or {}).items():
            kind = name.removeprefix("requests.").removeprefix("limits.")
            if kind in rooms:
                others = max(0.0, quantity(used.get(name, "0")) - ours.get(kind, 0.0))
                rooms[kind].append(quantity(hard) - others)
    if not all(rooms.values()):
        return None
    cpu, memory = (max(0.0, min(free)) for free in rooms.values())
    pool = Pool(nodes=1, vcpus=_whole(cpu), memory_bytes=_rounded(memory))
    return Capacity.of_pools(pool) if pool.vcpus and pool.memory_bytes else Capacity.of_pools()


def _shape(node: Mapping[str, Any], taken: Amounts) -> Pool:
    """Whole vCPU, bytes and devices that pods of ours may have there, as a pool of no nodes."""
    given = node["status"].get("allocatable") or {}
    free = {name: quantity(given.get(name, "0")) - taken.get(name, 0.0) for name in ("cpu", "memory", _GPUS)}
    labels = node["metadata"].get("labels") or {}
    taints = (node.get("spec") or {}).get("taints") or ()
    kind = next((gpu_type(labels[label]) for label in _GPU_LABELS if label in labels), "")
    gpus = max(0, _whole(free[_GPUS])) if kind else 0
    return Pool(
        nodes=0,
        vcpus=max(0, _whole(free["cpu"])),
        memory_bytes=max(0, _rounded(free["memory"])),
        accelerator_type=kind if gpus else "",
        accelerator_count=gpus,
        accelerators_only=any(taint["key"] == _GPUS and taint["effect"] in _CLOSING for taint in taints),
    )


def _requests(container: Mapping[str, Any]) -> Amounts:
    return _amounts((container.get("resources") or {}).get("requests") or {})


def _amounts(quantities: Mapping[str, str]) -> Amounts:
    return {name: quantity(text) for name, text in quantities.items()}


def _sum(*several: Amounts) -> Amounts:
    return {name: sum(each.get(name, 0.0) for each in several) for each in several for name in each}


def _larger(amounts: Amounts, other: Amounts) -> Amounts:
    return {name: max(amounts.get(name, 0.0), other.get(name, 0.0)) for name in {**amounts, **other}}


def _whole(amount: float) -> int:
    return int(round(amount, 3))


def _rounded(memory: float) -> int:
    return int(memory) // _MEMORY_STEP * _MEMORY_STEP
