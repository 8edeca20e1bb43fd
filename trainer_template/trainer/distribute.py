"""Many processes as one trainer: TF_CONFIG -> jax.distributed.

TF_CONFIG is read as TensorFlow reads it: {"cluster": {"chief": [...], "worker": [...]}, "task": {"type", "index"}}.
Process 0 is the chief (or master; with neither, worker 0), then come the workers in order. The chief's host:port is
where the processes meet.
"""

import dataclasses
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import numpy as np

log = logging.getLogger("trainer")

# Seconds. JAX's own are 300, 100 and 300: long to look at a job that cannot start, or whose chief is lost.
START_TIMEOUT = 120
HEARTBEAT_TIMEOUT = 20
SHUTDOWN_TIMEOUT = 60


class ClusterError(ValueError):
    """TF_CONFIG, or what it says, is nothing that this trainer can run as."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """This process's place among the processes of the job.

    Attributes:
        process_id: 0 is the chief.
        num_processes: chief and workers together.
        coordinator: host:port that process 0 listens on; None for a lone process.
        place_on_host: this process's number among those that TF_CONFIG puts on the same host, from 0.
        processes_on_host: how many those are.
    """

    process_id: int = 0
    num_processes: int = 1
    coordinator: str | None = None
    place_on_host: int = 0
    processes_on_host: int = 1

    @property
    def is_chief(self) -> bool:
        return self.process_id == 0


def cluster_from_environment() -> Cluster:
    """The place that TF_CONFIG gives; JAX_COORDINATOR_ADDRESS, where it is set, says where to meet instead."""
    cluster = parse_tf_config(os.environ.get("TF_CONFIG", ""))
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if cluster.num_processes > 1 and address:
        return dataclasses.replace(cluster, coordinator=address)
    return cluster


def parse_tf_config(text: str) -> Cluster:
    """TF_CONFIG's text -> this process's place. Empty, or without a cluster: a lone process.

    Raises:
        ClusterError: it is not understood, contradicts itself, or gives this process a role that there is no code for.
    """
    try:
        config = json.loads(text or "{}")
    except ValueError as error:
        raise ClusterError(f"TF_CONFIG is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ClusterError("TF_CONFIG is not a JSON object.")
    cluster = config.get("cluster") or {}
    if not cluster:
        return Cluster()
    task_type, task_index = _task(config)
    if task_type in ("ps", "evaluator"):
        raise ClusterError(
            f"This process is to be {task_type} {task_index}, a role that this trainer does not have: its replicas "
            "train in step with each other, and the chief evaluates. Ask for a chief (or master) and workers only: "
            "parameterServerCount and evaluatorCount 0."
        )
    processes = _processes(cluster)
    if (task_type, task_index) not in processes:
        known = ", ".join(f"{kind} {index}" for kind, index in processes)
        raise ClusterError(f"TF_CONFIG's task is {task_type} {task_index}, but its cluster has: {known}.")
    places = list(processes)
    process_id = places.index((task_type, task_index))
    hosts = [address.rsplit(":", 1)[0] for address in processes.values()]
    return Cluster(
        process_id=process_id,
        num_processes=len(processes),
        coordinator=processes[places[0]] if len(processes) > 1 else None,
        place_on_host=hosts[:process_id].count(hosts[process_id]),
        processes_on_host=hosts.count(hosts[process_id]),
    )


def share_cpus(cluster: Cluster) -> None:
    """Hold this process to its share of a host that it shares with others of its job.

    JAX starts a thread for each CPU that the process may use, and processes that all use all CPUs mostly wait for each
    other. Where somebody has already narrowed the CPUs (a scheduler, a container, taskset), that stands.
    """
    if not hasattr(os, "sched_setaffinity"):  # Linux has it, macOS does not
        return
    allowed = sorted(os.sched_getaffinity(0))
    if cluster.processes_on_host == 1 or len(allowed) < (os.cpu_count() or 1):
        return
    first = cluster.place_on_host * len(allowed) // cluster.processes_on_host
    end = (cluster.place_on_host + 1) * len(allowed) // cluster.processes_on_host
    os.sched_setaffinity(0, allowed[first : max(end, first + 1)])


def join(cluster: Cluster) -> None:
    """Meet the other processes; afterwards JAX sees the devices of all of them. A lone process has nobody to meet.

    Raises:
        RuntimeError: the chief cannot listen where the others expect it, the others did not come in time, or they bring
            another number of devices.
    """
    if cluster.coordinator is None:
        return
    import jax

    log.info(
        "Process %d of %d; meeting at %s.", cluster.process_id, cluster.num_processes, cluster.coordinator
    )
    loopback = cluster.coordinator.startswith(("127.", "localhost:", "[::1]:"))
    if cluster.is_chief:
        _check_port_is_free(cluster.coordinator, loopback)
    jax.distributed.initialize(
        coordinator_address=cluster.coordinator,
        num_processes=cluster.num_processes,
        process_id=cluster.process_id,
        cluster_detection_method="deactivate",  # everything is said above
        initialization_timeout=START_TIMEOUT,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        coordinator_bind_address=cluster.coordinator if loopback else None,
    )
    # The first collective waits for the others for 30 s and no longer. Here all have just met; after loading data,
    # which may take one of them much longer, it would fail.
    local = jax.local_device_count()
    ones = np.ones(local, np.float32)
    total = jax.pmap(lambda one: jax.lax.psum(one, "replica"), "replica")(ones).addressable_data(0)
    if int(total[0]) != local * cluster.num_processes:
        raise RuntimeError(
            f"This process has {local} devices, all {cluster.num_processes} processes have {int(total[0])}: "
            "each must have the same number."
        )


def broadcast(data: bytes) -> bytes:
    """The chief's data, in every process. All processes call this together; what the others pass is ignored."""
    import jax
    from jax.experimental import multihost_utils

    if jax.process_count() == 1:
        return data
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    mine = np.frombuffer(data, np.uint8) if jax.process_index() == 0 else np.zeros(size, np.uint8)
    return np.asarray(multihost_utils.broadcast_one_to_all(mine), np.uint8).tobytes()


def stop_watch(cluster: Cluster) -> Callable[[int], bool]:
    """From now on SIGTERM asks training to stop: returns a function that is called after each step and says when.

    Alone, that is the first step after the signal. Among several processes JAX keeps the signal from Python and lets
    them agree on a step which none of them has passed, whichever was signalled: the function is true in all of them at
    that step, so that none waits for another that has stopped. It must be called with every step, in every process.
    """
    if cluster.num_processes > 1:
        from jax.experimental import multihost_utils

        return multihost_utils.reached_preemption_sync_point
    received = False

    def remember(_signal: int, _frame: FrameType | None) -> None:
        nonlocal received
        received = True

    signal.signal(signal.SIGTERM, remember)
    return lambda _step: received


def part(cluster: Cluster) -> None:
    """Wait until every process has come to its end, so that none loses the chief while it still needs it."""
    if cluster.num_processes > 1:
        import jax

        jax.distributed.shutdown()


def _task(config: Mapping[str, Any]) -> tuple[str, int]:
    task = config.get("task") or {}
    try:
        return str(task["type"]), int(task["index"])
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(
            f"TF_CONFIG has a cluster, but its task lacks a type and an index: {task!r}."
        ) from error


def _processes(cluster: Any) -> dict[tuple[str, int], str]:
    """(task type, index) -> host:port of every process that trains, in the order of their process ids."""
    if not isinstance(cluster, dict) or not all(
        isinstance(hosts, list) and all(isinstance(host, str) and ":" in host for host in hosts)
        for hosts in cluster.values()
    ):
        raise ClusterError(f"TF_CONFIG's cluster does not map task types to lists of host:port: {cluster!r}.")
    if cluster.get("chief") and cluster.get("master"):
        raise ClusterError("TF_CONFIG's cluster has a chief and a master; they are two names for one role.")
    return {
        (task_type, index): host
        for task_type in ("chief", "master", "worker")
        for index, host in enumerate(cluster.get(task_type, []))
    }


def _check_port_is_free(coordinator: str, loopback: bool) -> None:
    """Asked before JAX does, which ends in a segmentation fault where the port is taken."""
    host, _, port = coordinator.rpartition(":")
    try:
        socket.create_server((host.strip("[]") if loopback else "", int(port))).close()
    except (OSError, ValueError) as error:
        raise RuntimeError(f"The chief cannot listen at {coordinator}: {error}") from error
