"""Nodes, pods and quotas as pools."""

from typing import Any

import pytest

from trainyard_agent.engines.kubernetes.capacity.capacity import (
    capacity_of,
    parse_pool,
    quantity,
    quota_of,
    requests_of,
    taken_by_others,
)
from trainyard_agent.engines.kubernetes.pods.objects import AGENT
from trainyard_protocol.job.resources import Pool

GPU = "nvidia.com/gpu"


def node(cpu: str, memory: str, name: str = "n", ready: str = "True", **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready}]
    return {
        "metadata": {"name": name},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": memory}, "conditions": conditions},
    }


def pod(cpu: str, node: str = "n", phase: str = "Running", ours: bool = False, **spec: Any) -> dict[str, Any]:
    containers = [{"resources": {"requests": {"cpu": cpu, "memory": "1G"}}}]
    return {
        "metadata": {"namespace": "ours" if ours else "theirs", "labels": {AGENT: "a"}},
        "spec": {"nodeName": node, "containers": containers, **spec},
        "status": {"phase": phase},
    }


def test_nodes_of_one_shape_are_a_pool_and_those_that_take_no_pods_are_none() -> None:
    nodes = [
        node("3920m", "16Gi"),
        node("3920m", "16Gi"),
        node("8", "64G"),
        node("8", "32Gi", taints=[{"key": "a", "effect": "NoSchedule"}]),
        node("8", "1Gi", ready="False"),
        node("8", "1Gi", unschedulable=True),
        node("500m", "1Gi"),
    ]
    assert capacity_of(nodes, {}).pools == (
        Pool(nodes=2, vcpus=3, memory_bytes=17_100_000_000),
        Pool(nodes=1, vcpus=8, memory_bytes=64 * 10**9),
    )


def test_devices_have_the_type_of_their_nodes_label() -> None:
    guarded = [{"key": GPU, "effect": "NoSchedule"}]
    nodes = [node("8", "64G"), node("8", "64G", taints=guarded), node("8", "64G")]
    for one in nodes:
        one["status"]["allocatable"][GPU] = "4"
    nodes[0]["metadata"]["labels"] = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    nodes[1]["metadata"]["labels"] = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
    assert [
        (pool.accelerator_type, pool.accelerator_count, pool.accelerators_only) for pool in capacity_of(nodes, {}).pools
    ] == [("", 0, False), ("NVIDIA_A100_80GB", 4, False), ("NVIDIA_TESLA_T4", 4, True)]


def test_room_is_what_pods_of_others_leave() -> None:
    pods = [pod("500m"), pod("4", ours=True), pod("4", phase="Succeeded"), pod("4", node="other"), pod("1600m")]
    taken = taken_by_others(pods, "ours")
    assert capacity_of([node("8", "64G")], taken).pools == (Pool(nodes=1, vcpus=5, memory_bytes=62 * 10**9),)


def test_requests_are_those_that_the_scheduler_counts() -> None:
    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    sidecar = container("1", restartPolicy="Always")
    one = pod("2", initContainers=[container("4"), sidecar, container("1500m")], overhead={"cpu": "250m"})
    assert requests_of(one)["cpu"] == 4.25
    assert requests_of(pod("4", initContainers=[sidecar]))["cpu"] == 5


def test_quota_leaves_what_others_in_the_namespace_do_not_use() -> None:
    hard = {"requests.cpu": "16", "limits.memory": "64G", "pods": "10"}
    quota = {"spec": {"hard": hard}, "status": {"used": {"requests.cpu": "7", "limits.memory": "5G"}}}
    scoped = {"spec": {"hard": {"cpu": "1", "memory": "1G"}, "scopes": ["BestEffort"]}}
    ours = [pod("4", ours=True), pod("4", ours=True, phase="Failed")]
    found = quota_of([quota, scoped], ours, "ours")
    assert found is not None
    assert found.pools == (Pool(nodes=1, vcpus=13, memory_bytes=60 * 10**9),)
    assert quota_of([{"spec": {"hard": {"cpu": "1"}}}, scoped], [], "ours") is None


def test_quantities_are_those_of_the_api() -> None:
    values = {"2": 2, "1900m": 1.9, "16Gi": 2**34, "1.5G": 1.5e9, "12e3": 12_000, "250000000n": 0.25, "1E": 1e18}
    assert {text: quantity(text) for text in values} == pytest.approx(values)
    with pytest.raises(ValueError, match="not a quantity: '1GB'"):
        quantity("1GB")


def test_pool_is_nodes_vcpu_gigabytes_and_devices() -> None:
    assert parse_pool("4x16x62.5") == Pool(nodes=4, vcpus=16, memory_bytes=62_500_000_000)
    assert parse_pool("2x8x64+4xnvidia_l4") == Pool(
        nodes=2, vcpus=8, memory_bytes=64 * 10**9, accelerator_type="NVIDIA_L4", accelerator_count=4
    )
    for wrong in ("4x16", "0x1x1", "1x1x0", "axbxc", "1x1x1+2"):
        with pytest.raises(ValueError, match="must look like 4x16x64"):
            parse_pool(wrong)
