"""Training inputs and gangs of jobs, parsed once a process. Neither changes while a job exists."""

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.machines import ReplicaRequest, Resources
from trainyard_protocol.job.parsing import parse_training_input
from trainyard_protocol.job.training_input import TrainingInput
from trainyard_server.storage.db.base.models import JobRow

JobInput = tuple[TrainingInput, tuple[ReplicaRequest, ...]]
"""The training input of a job, and the replicas that it asks for."""

_MAX_JOBS = 10_000


class JobInputs:
    """A cache of the parsed columns `training_input` and `gang`, by the job's key. Thread-safe."""

    def __init__(self) -> None:
        self._parsed: dict[int, JobInput] = {}
        self._lock = Lock()

    def of(self, job: JobRow) -> JobInput:
        """Raises InvalidArgument or KeyError for a row that cannot be parsed."""
        parsed = self._parsed.get(job.key)
        if parsed is None:
            parsed = parse_training_input(job.training_input), gang_from_json(job.gang)
            self.add({job.key: parsed})
        return parsed

    def add(self, parsed: Mapping[int, JobInput]) -> None:
        """Only for rows that are committed: SQLite gives the key of a row that was rolled back to another job."""
        with self._lock:
            self._parsed.update(parsed)
            while len(self._parsed) > _MAX_JOBS:
                del self._parsed[next(iter(self._parsed))]


def gang_to_json(gang: Sequence[ReplicaRequest]) -> list[Any]:
    """The column `gang` of a job's row."""
    return [
        {
            "task": request.task.name,
            "machine_type": request.machine_type,
            "vcpus": request.resources.vcpus,
            "memory_bytes": request.resources.memory_bytes,
            "accelerator_type": request.resources.accelerator_type,
            "accelerator_count": request.resources.accelerator_count,
        }
        for request in gang
    ]


def gang_from_json(gang: Sequence[Mapping[str, Any]]) -> tuple[ReplicaRequest, ...]:
    """The inverse of `gang_to_json`."""
    return tuple(
        ReplicaRequest(
            Task.parse(row["task"]),
            row["machine_type"],
            Resources(row["vcpus"], row["memory_bytes"], row["accelerator_type"], row["accelerator_count"]),
        )
        for row in gang
    )
