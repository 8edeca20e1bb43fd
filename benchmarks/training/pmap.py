"""The same step by pmap, as the template's strategies compile it, and by jit with shard_map: seconds a step."""

import json
import statistics
from pathlib import Path

from benchmarks.training.cases import Case
from benchmarks.training.processes import BOTH_CORES, FIRST_CORE, SECOND_CORE, running
from benchmarks.training.results import Table, ratio, say
from benchmarks.training.trainers import tf_configs

COLUMNS = (
    "model",
    "examples",
    "batch",
    "processes",
    "devices of each",
    "pmap, ms",
    "shard_map, ms",
    "pmap / shard_map",
)


def measure(cases: list[Case], rounds: int, folder: Path) -> Table:
    rows = []
    for case in cases:
        for processes, devices in ((1, 2), (2, 1)):
            say(f"{case}, pmap and shard_map, {processes} processes")
            pmap, shard_map = _both(case, processes, devices, rounds, folder)
            values = (
                case.model, case.examples, case.batch_size, processes, devices,
                1000 * statistics.median(pmap), 1000 * statistics.median(shard_map), ratio(pmap, shard_map),
            )  # fmt: skip
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return Table(
        "pmap against jit with shard_map",
        COLUMNS,
        rows,
        "One step of the template's, the batch's way to the devices included, by turns in the same processes; the "
        f"batch is a device's. Rounds: {rounds}. Below 1, pmap is the faster one.",
    )


def _both(
    case: Case, processes: int, devices: int, rounds: int, folder: Path
) -> tuple[list[float], list[float]]:
    """Seconds a step of each round."""
    places = [BOTH_CORES] if processes == 1 else [FIRST_CORE, SECOND_CORE]
    environment = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
    }
    settings = json.dumps({**case.settings(), "rounds": rounds})
    commands = [
        (["-m", "benchmarks.training.mapped_steps", settings], cores, {**environment, **config})
        for cores, config in zip(places, tf_configs(processes), strict=True)
    ]
    with running(*commands) as (chief, *_):
        chief.wait_for(chief.lines)
        measured = chief.lines()[0].event
    return measured["pmap"], measured["shard_map"]
