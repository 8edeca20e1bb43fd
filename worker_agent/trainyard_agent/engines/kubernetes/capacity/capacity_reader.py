"""Reads the capacity of a cluster again and again: other people's pods come and go, and so do nodes."""

import logging
import threading
import time

from trainyard_agent.engines.kubernetes.api.client import KubeClient, KubeError, KubeRefused
from trainyard_agent.engines.kubernetes.capacity.capacity import capacity_of, is_open, quota_of, taken_by_others
from trainyard_protocol.job.resources import Capacity

_READ_S = 30.0
_REST = 20.0  # times as long as a read took: thousands of pods are many megabytes
_FORBIDDEN = 403

_log = logging.getLogger(__name__)


class NoCapacity(KubeError):
    """Nothing says what jobs may use."""


def read_capacity(client: KubeClient, beside_others: bool = True) -> Capacity:
    """The room on the cluster's nodes beside pods that are not ours, else that in the namespace's quota. Without
    `beside_others` the nodes count as empty: a queue of the cluster's own may have others go. Raises KubeError."""
    try:
        nodes = list(client.of_cluster("nodes"))
    except KubeRefused as refused:
        if refused.status != _FORBIDDEN:
            raise
        return _of_quota(client)
    if not any(map(is_open, nodes)):
        raise NoCapacity("The cluster has no node that is ready and takes pods.")
    if not beside_others:
        return capacity_of(nodes, {})
    try:
        taken = taken_by_others(client.of_cluster("pods", _PLACED), client.namespace)
    except KubeRefused as refused:
        if refused.status != _FORBIDDEN:
            raise
        taken = {}
    return capacity_of(nodes, taken)


_PLACED = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


def _of_quota(client: KubeClient) -> Capacity:
    capacity, quotas = None, []
    try:
        quotas = client.list("resourcequotas", "")[0]
    except KubeRefused as refused:
        if refused.status != _FORBIDDEN:  # a Role of before quotas were read
            raise
    if quotas:
        capacity = quota_of(quotas, client.list("pods", "")[0], client.namespace)
    if capacity is None:
        raise NoCapacity(
            f"The agent may not list the cluster's nodes, and the namespace {client.namespace} has no ResourceQuota "
            "for CPU and memory. Say with --pool what jobs may use, such as --pool 4x16x64, or apply "
            "deploy/kubernetes/capacity.yaml."
        )
    return capacity


class CapacityReader:
    """The newest capacity of a cluster, by a thread."""

    def __init__(self, client: KubeClient, pause_s: float = _READ_S, beside_others: bool = True) -> None:
        """`beside_others`: as `read_capacity`."""
        self._client, self._pause_s, self._beside_others = client, pause_s, beside_others
        self._newest: Capacity | None = None
        self._closing = threading.Event()
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="capacity")

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closing.set()

    def newest(self, before: Capacity) -> Capacity:
        """The capacity as last read; `before` the first read."""
        return self._newest or before

    def _run(self) -> None:
        rest = 0.0
        while not self._closing.wait(rest):
            began = time.monotonic()
            self._read()
            rest = max(self._pause_s, _REST * (time.monotonic() - began))

    def _read(self) -> None:
        try:
            capacity = read_capacity(self._client, self._beside_others)
        except NoCapacity as error:
            self._report(error)
            capacity = Capacity.of_pools()
        except KubeError as error:
            self._report(error)
            return
        else:
            self._last_error = ""
        if capacity != self._newest:
            amounts = (capacity.vcpus, capacity.memory_bytes / 1e9, sum(pool.nodes for pool in capacity.pools))
            _log.info("the cluster has room for %d vCPU and %.1f GB on %d node(s)", *amounts)
        self._newest = capacity

    def _report(self, error: KubeError) -> None:
        if error.message != self._last_error and not self._closing.is_set():
            _log.warning("the cluster's capacity: %s", error.message)
        self._last_error = error.message
