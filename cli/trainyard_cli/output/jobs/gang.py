"""The replicas of a job that is to be submitted, by task type. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from trainyard_cli.output.jobs import formats
from trainyard_protocol.job.cluster import TASK_TYPES
from trainyard_protocol.job.machines import Catalog, gang, replicas_of
from trainyard_protocol.job.resources import GIGABYTE
from trainyard_protocol.job.training_input import TrainingInput

_COUNTS = ("worker_count", "parameter_server_count", "evaluator_count")


def gang_of(training_input: TrainingInput, catalog: Catalog) -> list[dict[str, Any]]:
    """The replicas of a training input, one entry per task type.

    Empty if a machine type is only in another server's catalog.
    """
    names = {replicas_of(training_input, task_type, catalog)[0] for task_type in TASK_TYPES} - {""}
    if not names <= catalog.machine_types.keys():
        return []
    counts = {name: min(getattr(training_input, name), 1) for name in _COUNTS}
    one_of_each = training_input.model_copy(update=counts)
    return [
        {
            "taskType": request.task.type,
            "count": replicas_of(training_input, request.task.type, catalog)[1],
            "machineType": request.machine_type,
            "vcpus": request.resources.vcpus,
            "memoryGb": request.resources.memory_bytes / GIGABYTE,
            "acceleratorType": request.resources.accelerator_type,
            "acceleratorCount": request.resources.accelerator_count,
        }
        for request in gang(one_of_each, catalog)
        if request.task.index == 0
    ]


def gang_text(groups: Sequence[Mapping[str, Any]]) -> str:
    """The gang as a table, with totals."""
    rows = [
        [
            str(group["taskType"]),
            str(group["count"]),
            str(group["machineType"]),
            str(group["vcpus"]),
            f"{group['memoryGb']:g} GB",
            f"{group['acceleratorCount']} x {group['acceleratorType']}" if group["acceleratorCount"] else "-",
        ]
        for group in groups
    ]
    vcpus = sum(group["count"] * group["vcpus"] for group in groups)
    memory = sum(group["count"] * group["memoryGb"] for group in groups)
    replicas = sum(group["count"] for group in groups)
    total = f"{formats.count(replicas, 'replica')}, {formats.count(vcpus, 'vCPU')}, {memory:g} GB in total"
    return f"{formats.table(['TASK', 'COUNT', 'MACHINE_TYPE', 'VCPUS', 'MEMORY', 'ACCELERATORS'], rows)}\n{total}"
