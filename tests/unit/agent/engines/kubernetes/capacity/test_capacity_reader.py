"""Capacity that is read again and again, of an API server that fails."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from beds.fake_cluster import NAMESPACE, FakeCluster, Fault, fake_cluster
from beds.waiting import until
from trainyard_agent.engines.kubernetes.capacity.capacity_reader import CapacityReader, NoCapacity, read_capacity
from trainyard_protocol.job.resources import Capacity, Pool

NODES = "/api/v1/nodes"
BEFORE = Capacity.of_pools(Pool(nodes=9, vcpus=9, memory_bytes=9))
FORBIDDEN = Fault(status=403)


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with fake_cluster() as cluster:
        yield cluster


def node(name: str) -> dict[str, Any]:
    ready = [{"type": "Ready", "status": "True"}]
    return {"metadata": {"name": name}, "status": {"conditions": ready, "allocatable": {"cpu": "4", "memory": "8G"}}}


def test_capacity_changes_with_the_nodes_and_stays_while_they_cannot_be_read(cluster: FakeCluster) -> None:
    cluster.objects[f"{NODES}/a"] = node("a")
    with closing(cluster.client()) as client, closing(CapacityReader(client, pause_s=0.01)) as reader:

        def vcpus() -> int:
            return reader.newest(BEFORE).vcpus

        assert vcpus() == 81
        reader.start()
        until(lambda: vcpus() == 4)
        cluster.fail("GET", NODES, Fault(status=500))
        until(lambda: not cluster.faults_left)
        assert vcpus() == 4
        del cluster.objects[f"{NODES}/a"]
        until(lambda: vcpus() == 0)


def test_quota_is_asked_for_where_nodes_are_not_to_be_listed(cluster: FakeCluster) -> None:
    hard = {"cpu": "3", "memory": "5G"}
    with closing(cluster.client()) as client:
        cluster.fail("GET", NODES, FORBIDDEN, FORBIDDEN, FORBIDDEN)
        with pytest.raises(NoCapacity, match="Say with --pool what jobs may use"):
            read_capacity(client)
        cluster.fail("GET", "/resourcequotas", FORBIDDEN)
        with pytest.raises(NoCapacity, match="has no ResourceQuota"):
            read_capacity(client)
        cluster.objects[f"/api/v1/namespaces/{NAMESPACE}/resourcequotas/q"] = {
            "metadata": {"name": "q"},
            "spec": {"hard": hard},
        }
        assert read_capacity(client).pools == (Pool(nodes=1, vcpus=3, memory_bytes=5 * 10**9),)


def test_nodes_come_in_pages_and_count_as_empty_where_pods_are_not_to_be_listed(cluster: FakeCluster) -> None:
    cluster.objects[f"{NODES}/a"] = node("a")
    first_page = {"metadata": {"continue": "more"}, "items": [node("b")]}
    cluster.fail("GET", NODES, Fault(status=200, body=json.dumps(first_page).encode()))
    cluster.fail("GET", "/api/v1/pods", FORBIDDEN)
    with closing(cluster.client()) as client:
        assert read_capacity(client).vcpus == 8
    assert "GET /api/v1/pods" in cluster.requests
