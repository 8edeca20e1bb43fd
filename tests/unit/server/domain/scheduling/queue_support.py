"""Jobs, machines and what runs on them, as short as tests want to say it."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard_protocol.job.cluster import Task
from trainyard_protocol.job.keys.scheduling import Band, Scheduling
from trainyard_protocol.job.machines import ReplicaRequest, Resources
from trainyard_protocol.job.resources import GIGABYTE, Capacity, Gpu
from trainyard_protocol.job.training_input import ReplicaConfig, TrainingInput
from trainyard_protocol.states import JobState
from trainyard_server.domain.scheduling.resources import AgentSnapshot, Gang, Part
from trainyard_server.domain.scheduling.scheduler import Placement, Plan
from trainyard_server.domain.snapshots import JobSnapshot

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def request(number: int, cpus: int = 1, gb: float = 2, gpus: int = 0, kind: str = "NVIDIA_TESLA_T4") -> ReplicaRequest:
    task = Task("worker", number - 1) if number else Task("master", 0)
    return ReplicaRequest(task, "type", Resources(cpus, round(gb * GIGABYTE), kind if gpus else "", gpus))


def queued(key: int, replicas: int = 1, *, priority: int = 0, age: int = 0, **given: Any) -> JobSnapshot:
    image = ReplicaConfig(image_uri="image" if given.pop("needs_images", False) else "")
    backoff_until = given.pop("backoff_until", None)
    project = given.pop("project", "p")
    gang = tuple(request(n, **given) for n in range(replicas))
    return waiting(key, gang, age=age, priority=priority, project=project, image=image, backoff_until=backoff_until)


def of_band(band: str, key: int, **given: Any) -> JobSnapshot:
    owner = given.pop("owner", "")
    job = queued(key, **given)
    training_input = TrainingInput(scheduling=Scheduling(band=Band(band.upper()), priority=job.priority))
    return replace(job, training_input=training_input, owner=owner)


def waiting(
    key: int,
    gang: Iterable[ReplicaRequest],
    *,
    age: int = 0,
    project: str = "p",
    image: ReplicaConfig | None = None,
    **given: Any,
) -> JobSnapshot:
    """A queued job with that gang."""
    created_at = NOW - timedelta(seconds=age)
    return JobSnapshot(
        key,
        project,
        f"job{key}",
        JobState.QUEUED,
        TrainingInput(master_config=image),
        tuple(gang),
        created_at=created_at,
        queued_at=created_at,
        **given,
    )


def agent(
    name: str = "laptop", cpus: int = 2, gb: float = 8, gpus: tuple[str, ...] = (), mode: str = "strict", **given: Any
) -> AgentSnapshot:
    devices = tuple(Gpu(id=f"{name}-{n}", type=kind) for n, kind in enumerate(gpus))
    capacity = Capacity(cpus=tuple(range(cpus)), memory_bytes=round(gb * GIGABYTE), gpus=devices)
    return AgentSnapshot(name, name, capacity, mode, **({"runs_images": False} | given))  # type: ignore[arg-type]


def held(
    *cpus: int, gpus: tuple[str, ...] = (), gb: float = 0, key: int = 99, project: str = "p", ended: bool = False
) -> Gang:
    return Gang(key, project, frozenset(cpus), frozenset(gpus), round(gb * GIGABYTE), ended)


def gang_of_part(part: Part, key: int = 1, project: str = "p", *, further: bool = False) -> Gang:
    return Gang.of(part.assignments, key, project, further=further)


def gang_of(placement: Placement, project: str = "p") -> Gang:
    """The gang of a placement."""
    given = placement.assignments
    return Gang(
        placement.key,
        project,
        frozenset(cpu for one in given for cpu in one.cpus),
        frozenset(gpu for one in given for gpu in one.gpus),
        sum(one.memory_bytes for one in given),
    )


def placed(result: Plan) -> list[int]:
    return [placement.key for placement in result.placements]


def only(result: Plan) -> Placement:
    (placement,) = result.placements
    return placement
