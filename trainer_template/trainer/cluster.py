"""Who else is there: TF_CONFIG -> this process's place in the job. Nothing here needs JAX.

TF_CONFIG is read as TensorFlow reads it: {"cluster": {"chief": [...], "worker": [...], "ps": [...]},
"task": {"type", "index"}}. The chief (or master; with neither, worker 0) and the workers train: process 0 is the chief,
then come the workers in order, and the chief's host:port is where they meet. Parameter servers hold the variables of
asynchronous training. An evaluator is in nobody's cluster: it only sees what the chief saves.
"""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Any, Literal

from trainer.errors import UsageError

Role = Literal["trainer", "ps", "evaluator"]


class ClusterError(UsageError):
    """TF_CONFIG, or what it says, is nothing that this trainer can run as."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """This process's place among the processes of the job.

    Attributes:
        role: what this process does.
        index: its number among those of its role, from 0; of a trainer, the process id: 0 is the chief.
        num_processes: chief and workers together.
        coordinator: host:port that process 0 listens on; None for a lone process.
        parameter_servers: host:port of each.
        place_on_host: this process's number among those that TF_CONFIG puts on the same host, from 0.
        processes_on_host: how many those are.
    """

    role: Role = "trainer"
    index: int = 0
    num_processes: int = 1
    coordinator: str | None = None
    parameter_servers: tuple[str, ...] = ()
    place_on_host: int = 0
    processes_on_host: int = 1

    @property
    def process_id(self) -> int:
        """Among the processes that train; any other is alone with itself."""
        return self.index if self.role == "trainer" else 0

    @property
    def is_chief(self) -> bool:
        return self.role == "trainer" and self.index == 0


def cluster_from_environment() -> Cluster:
    """The place that TF_CONFIG gives; JAX_COORDINATOR_ADDRESS, where it is set, says where to meet instead."""
    cluster = parse_tf_config(os.environ.get("TF_CONFIG", ""))
    address = os.environ.get("JAX_COORDINATOR_ADDRESS")
    if cluster.coordinator and address:
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
    addresses = config.get("cluster") or {}
    if not addresses:
        return Cluster()
    task_type, task_index = _task(config)
    tasks = _tasks(addresses)
    trainers = [task for task in tasks if task[0] != "ps"]
    servers = tuple(address for (kind, _), address in tasks.items() if kind == "ps")
    if task_type == "evaluator":
        return Cluster("evaluator", task_index, parameter_servers=servers)
    if (task_type, task_index) not in tasks:
        known = ", ".join(f"{kind} {index}" for kind, index in tasks)
        raise ClusterError(f"TF_CONFIG's task is {task_type} {task_index}, but its cluster has: {known}.")
    if not trainers:
        raise ClusterError("TF_CONFIG's cluster has parameter servers, but no chief and no worker to train.")
    place = list(tasks).index((task_type, task_index))
    hosts = [address.rsplit(":", 1)[0] for address in tasks.values()]
    return Cluster(
        role="ps" if task_type == "ps" else "trainer",
        index=task_index if task_type == "ps" else trainers.index((task_type, task_index)),
        num_processes=len(trainers),
        coordinator=tasks[trainers[0]] if len(trainers) > 1 else None,
        parameter_servers=servers,
        place_on_host=hosts[:place].count(hosts[place]),
        processes_on_host=hosts.count(hosts[place]),
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


def _task(config: Mapping[str, Any]) -> tuple[str, int]:
    task = config.get("task") or {}
    try:
        return str(task["type"]), int(task["index"])
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(
            f"TF_CONFIG has a cluster, but its task lacks a type and an index: {task!r}."
        ) from error


def _tasks(addresses: Any) -> dict[tuple[str, int], str]:
    """(task type, index) -> host:port: those that train, in the order of their process ids, then the servers."""
    if not isinstance(addresses, dict) or not all(
        isinstance(hosts, list) and all(isinstance(host, str) and ":" in host for host in hosts)
        for hosts in addresses.values()
    ):
        raise ClusterError(
            f"TF_CONFIG's cluster does not map task types to lists of host:port: {addresses!r}."
        )
    if addresses.get("chief") and addresses.get("master"):
        raise ClusterError("TF_CONFIG's cluster has a chief and a master; they are two names for one role.")
    return {
        (task_type, index): host
        for task_type in ("chief", "master", "worker", "ps")
        for index, host in enumerate(addresses.get(task_type, []))
    }
