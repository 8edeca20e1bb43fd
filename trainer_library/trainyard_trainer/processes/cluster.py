"""TF_CONFIG: the processes of the job and this process's role. Does not import JAX.

TF_CONFIG has TensorFlow's format: {"cluster": {"chief": [...], "worker": [...]}, "task": {"type", "index"}}. The chief
(or master; with neither, worker 0) and the workers train: process 0 is the chief, followed by the workers in order, and
the chief's host:port is the coordinator. An evaluator is not in the cluster: it only reads the chief's checkpoints.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Literal

from trainyard_trainer.errors import TrainerUsageError

Role = Literal["trainer", "evaluator"]


class ClusterError(TrainerUsageError):
    """TF_CONFIG is invalid or not supported."""


@dataclasses.dataclass(frozen=True)
class ClusterSpec:
    """The processes of the job, and which of them this process is.

    Attributes:
        role: what this process does.
        index: its index among the processes of its role; of a trainer, the process id: 0 is the chief.
        num_processes: number of trainers: chief and workers.
        names: of the trainers, by process id: "chief 0 (host:port)"; empty for a single process.
        coordinator: host:port that process 0 listens on; None for a single process.
        index_on_host: index of this process among those on the same host.
        processes_on_host: number of processes on the same host.
    """

    role: Role = "trainer"
    index: int = 0
    num_processes: int = 1
    names: tuple[str, ...] = ()
    coordinator: str | None = None
    index_on_host: int = 0
    processes_on_host: int = 1

    @property
    def process_id(self) -> int:
        """Index among the processes that train; 0 for any other process."""
        return self.index if self.role == "trainer" else 0

    @property
    def is_chief(self) -> bool:
        return self.role == "trainer" and self.index == 0


def cluster_from_environment() -> ClusterSpec:
    """The cluster of TF_CONFIG; JAX_COORDINATOR_ADDRESS overrides the coordinator."""
    cluster = parse_tf_config(os.environ.get("TF_CONFIG", ""))
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if cluster.coordinator and address:
        return dataclasses.replace(cluster, coordinator=address)
    return cluster


def parse_tf_config(text: str) -> ClusterSpec:
    """Parse TF_CONFIG. If it is empty or has no cluster, this is a single process.

    Raises:
        ClusterError: it is invalid, inconsistent, or has an unknown task type.
    """
    try:
        config = json.loads(text or "{}")
    except ValueError as error:
        raise ClusterError(f"TF_CONFIG is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise ClusterError("TF_CONFIG is not a JSON object.")
    addresses = config.get("cluster") or {}
    if not addresses:
        return ClusterSpec()
    task_type, task_index = _task(config)
    tasks = _tasks(addresses)
    if addresses.get("ps"):
        raise ClusterError(
            "TF_CONFIG's cluster has parameter servers (ps), and this library trains synchronously, without any. Ask "
            "for none (parameterServerCount; the tiers STANDARD_1 and PREMIUM_1 have some), or train asynchronously "
            "by TensorFlow's ParameterServerStrategy: see Strategies in the README of trainyard-trainer. "
            "tests/programs/parameter_servers.py is such a program, configs/parameter-servers.yaml its job."
        )
    if task_type == "evaluator":
        return ClusterSpec("evaluator", task_index)
    if (task_type, task_index) not in tasks:
        members = ", ".join(f"{kind} {index}" for kind, index in tasks)
        raise ClusterError(f"TF_CONFIG's task is {task_type} {task_index}, but its cluster has: {members}.")
    number = list(tasks).index((task_type, task_index))
    hosts = [address.rsplit(":", 1)[0] for address in tasks.values()]
    names = tuple(f"{kind} {index} ({address})" for (kind, index), address in tasks.items())
    return ClusterSpec(
        index=number,
        num_processes=len(tasks),
        names=names if len(tasks) > 1 else (),
        coordinator=next(iter(tasks.values())) if len(tasks) > 1 else None,
        index_on_host=hosts[:number].count(hosts[number]),
        processes_on_host=hosts.count(hosts[number]),
    )


def divide_cpus(cluster: ClusterSpec) -> None:
    """Set this process's CPU affinity to its part of the CPUs of a host that has several processes of the job.

    JAX starts a thread for each CPU of the affinity mask, and processes that all use all CPUs slow each other down. An
    affinity that was already restricted (by a scheduler, a container, taskset) is not changed.
    """
    if not hasattr(os, "sched_setaffinity"):  # Linux has it, macOS does not
        return
    allowed = sorted(os.sched_getaffinity(0))
    if cluster.processes_on_host == 1 or len(allowed) < (os.cpu_count() or 1):
        return
    first = cluster.index_on_host * len(allowed) // cluster.processes_on_host
    end = (cluster.index_on_host + 1) * len(allowed) // cluster.processes_on_host
    os.sched_setaffinity(0, allowed[first : max(end, first + 1)])


def _task(config: Mapping[str, Any]) -> tuple[str, int]:
    task = config.get("task") or {}
    try:
        return str(task["type"]), int(task["index"])
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"TF_CONFIG has a cluster, but its task has no type and index: {task!r}.") from error


def _tasks(addresses: Any) -> dict[tuple[str, int], str]:
    """(task type, index) -> host:port of the trainers, in the order of their process ids."""
    if not isinstance(addresses, dict) or not all(
        isinstance(hosts, list) and all(isinstance(host, str) and ":" in host for host in hosts)
        for hosts in addresses.values()
    ):
        raise ClusterError(f"TF_CONFIG's cluster must map task types to lists of host:port: {addresses!r}.")
    if addresses.get("chief") and addresses.get("master"):
        raise ClusterError("TF_CONFIG's cluster has a chief and a master; they are two names for one role.")
    return {
        (task_type, index): host
        for task_type in ("chief", "master", "worker")
        for index, host in enumerate(addresses.get(task_type, []))
    }
