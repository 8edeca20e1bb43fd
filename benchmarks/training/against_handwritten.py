"""Examples/s of the template and of the same training as a plain loop, on one core and on two."""

import statistics
from pathlib import Path

from benchmarks.training.cases import Case
from benchmarks.training.processes import BOTH_CORES, FIRST_CORE, running
from benchmarks.training.results import ResultTable, log_progress, ratio
from benchmarks.training.trainers import job, rate, wait_for_steps

TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
COLUMNS = (
    "model", "examples", "batch", "devices", "by hand, examples/s", "template, examples/s", "template / by hand",
)  # fmt: skip


def measure(cases: list[Case], rounds: int, folder: Path) -> ResultTable:
    rows = []
    for case in cases:
        for devices in (1, 2):
            log_progress(f"{case}, {devices} devices")
            by_hand: list[float] = []
            template: list[float] = []
            turns = [(by_hand, rate_by_hand), (template, rate_of_template)]
            for _ in range(rounds):
                for rates, run in turns:
                    rates.append(run(case, devices, folder))
                turns.reverse()
            values = (
                case.model, case.examples, case.batch_size, devices,
                statistics.median(by_hand), statistics.median(template), ratio(template, by_hand),
            )  # fmt: skip
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return ResultTable(
        "The template against the same training written by hand",
        COLUMNS,
        rows,
        "One device: both on the same core. Two: a device for each of two cores, both by pmap. The batch is per "
        f"device. The template reports progress every 10 steps, its default. Rounds: {rounds}. Target: 0.97.",
    )


def rate_by_hand(case: Case, devices: int, folder: Path) -> float:
    cores, environment = _cores_and_environment(devices, folder)
    with running((case.handwritten(), cores, environment)) as (process,):
        process.wait_for(process.lines)
        return float(process.lines()[0].event["examples_per_second"])


def rate_of_template(case: Case, devices: int, folder: Path) -> float:
    cores, environment = _cores_and_environment(devices, folder)
    with job(case, [cores], folder, environment) as (process,):
        wait_for_steps(process, case.steps)
        return rate(process, case, devices)


def _cores_and_environment(devices: int, folder: Path) -> tuple[tuple[int, ...], dict[str, str]]:
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}  # filled by the first round
    return (FIRST_CORE, compiled) if devices == 1 else (BOTH_CORES, {**compiled, **TWO_DEVICES})
