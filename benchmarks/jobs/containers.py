"""Launch of a job of containers whose image is there, against as many containers by Docker's SDK."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

from docker import APIClient

from benchmarks.rows import Row, Samples, interleaved
from benchmarks.service import REPLICAS, running, seconds
from benchmarks.tools import engine

_COMMAND = ["date", "+%s%N"]
_numbers = count()


def _launch(quick: bool) -> Samples:
    with engine() as docker, running("auto", variables=docker.environment) as service:
        image = docker.base_image
        replica = {"imageUri": image, "containerCommand": _COMMAND}
        job = {"masterConfig": replica, "workerConfig": replica}
        by_sdk = partial(_by_sdk, docker.client().api, image)
        return interleaved(partial(service.launch, job), by_sdk, 3 if quick else 15, "s")


def _by_sdk(api: APIClient, image: str) -> float:
    """Seconds to the last first instruction of REPLICAS containers, made in parallel on a network of their own, with
    the limits that a job's have."""
    name = f"benchmark-{next(_numbers)}"
    host: dict[str, Any] = {
        "NetworkMode": name,
        "Init": True,
        "Memory": 2**29,
        "MemorySwap": 2**29,
        "ShmSize": 2**28,
        "PidsLimit": 4096,
    }
    cpus = sorted(os.sched_getaffinity(0))

    def start(number: int) -> str:
        pinned = {**host, "CpusetCpus": str(cpus[number % len(cpus)])}
        spec = {"Image": image, "Cmd": _COMMAND, "HostConfig": pinned}
        container = str(api.create_container_from_config(spec, f"{name}-{number}")["Id"])
        api.start(container)
        return container

    began = time.time_ns()
    network = api.create_network(name)["Id"]
    with ThreadPoolExecutor(REPLICAS) as pool:
        containers = list(pool.map(start, range(REPLICAS)))
    lines = []
    for container in containers:
        api.wait(container)
        lines += api.logs(container).decode().splitlines()
        api.remove_container(container)
    api.remove_network(network)
    return seconds(began, lines)


ROWS = (
    Row(
        "launch-containers",
        f"a job of {REPLICAS} containers, image present: request to the last first instruction",
        f"{REPLICAS} containers by the SDK in parallel on a network of their own, same limits",
        1.2,
        _launch,
        bound="a home for the user of each container of a root image, an archive through the engine",
    ),
)
