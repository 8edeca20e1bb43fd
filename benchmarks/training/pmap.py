"""Seconds per step of the template's pmap and of jit with shard_map."""

import json
import statistics
from pathlib import Path

from benchmarks.training.cases import Case
from benchmarks.training.processes import BOTH_CORES, FIRST_CORE, SECOND_CORE, running
from benchmarks.training.results import ResultTable, log_progress, ratio
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


def measure(cases: list[Case], rounds: int, folder: Path) -> ResultTable:
    rows = []
    for case in cases:
        for processes, devices in ((1, 2), (2, 1)):
            log_progress(f"{case}, pmap and shard_map, {processes} processes")
            pmap, shard_map = _both(case, processes, devices, rounds, folder)
            values = (
                case.model, case.examples, case.batch_size, processes, devices,
                1000 * statistics.median(pmap), 1000 * statistics.median(shard_map), ratio(pmap, shard_map),
            )  # fmt: skip
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return ResultTable(
        "pmap against jit with shard_map",
        COLUMNS,
        rows,
        "One step of the template, including the transfer of the batch, alternately in the same processes; the "
        f"batch is per device. Rounds: {rounds}. Below 1, pmap is faster.",
    )


def _both(
    case: Case, processes: int, devices: int, rounds: int, folder: Path
) -> tuple[list[float], list[float]]:
    """Seconds per step of each round."""
    cores_of = [BOTH_CORES] if processes == 1 else [FIRST_CORE, SECOND_CORE]
    environment = {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
    }
    settings = json.dumps({**case.settings(), "rounds": rounds})
    commands = [
        (["-m", "benchmarks.training.mapped_steps", settings], cores, {**environment, **config})
        for cores, config in zip(cores_of, tf_configs(processes), strict=True)
    ]
    with running(*commands) as (chief, *_):
        chief.wait_for(chief.lines)
        measured = chief.lines()[0].event
    return measured["pmap"], measured["shard_map"]
