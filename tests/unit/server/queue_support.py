"""Jobs, machines and what runs on them, as short as tests want to say it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from trainyard_protocol.cluster import Task
from trainyard_protocol.machines import GIGABYTE, ReplicaRequest, Resources
from trainyard_protocol.sync import Capacity, Gpu
from trainyard_server.domain.scheduling.resources import Agent, Gang
from trainyard_server.domain.scheduling.scheduler import Placement, Plan, Queued

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def request(
    number: int, cpus: int = 1, gb: float = 2, gpus: int = 0, kind: str = "NVIDIA_TESLA_T4"
) -> ReplicaRequest:
    task = Task("worker", number - 1) if number else Task("master", 0)
    return ReplicaRequest(task, "type", Resources(cpus, round(gb * GIGABYTE), kind if gpus else "", gpus))


def queued(key: int, replicas: int = 1, *, priority: int = 0, age: int = 0, **given: Any) -> Queued:
    images = bool(given.pop("needs_images", False))
    not_before = given.pop("not_before", None)
    project = given.pop("project", "p")
    gang = tuple(request(n, **given) for n in range(replicas))
    return Queued(key, priority, NOW - timedelta(seconds=age), gang, images, not_before, project)


def agent(
    name: str = "laptop",
    cpus: int = 2,
    gb: float = 8,
    gpus: tuple[str, ...] = (),
    mode: str = "strict",
    **given: Any,
) -> Agent:
    devices = tuple(Gpu(id=f"{name}-{n}", type=kind) for n, kind in enumerate(gpus))
    capacity = Capacity(cpus=tuple(range(cpus)), memory_bytes=round(gb * GIGABYTE), gpus=devices)
    return Agent(name, name, capacity, mode, **({"runs_images": False} | given))  # type: ignore[arg-type]


def held(
    *cpus: int,
    gpus: tuple[str, ...] = (),
    gb: float = 0,
    key: int = 99,
    project: str = "p",
    over: bool = False,
) -> Gang:
    return Gang(key, project, frozenset(cpus), frozenset(gpus), round(gb * GIGABYTE), over)


def gang_of(placement: Placement, project: str = "p") -> Gang:
    """What a placement will hold."""
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
