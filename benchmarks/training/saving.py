"""Seconds for which saving a checkpoint of ResNet-50 blocks training, with the template and with Orbax."""

import statistics
from pathlib import Path
from typing import Any

from benchmarks.training.cases import Case
from benchmarks.training.processes import BOTH_CORES, running
from benchmarks.training.results import ResultTable, log_progress

COLUMNS = ("saved by", "MB", "blocked, ms", "slowest, ms", "until it is written, s")


def measure(cases: list[Case], rounds: int, folder: Path) -> ResultTable:
    rows: list[dict[str, Any]] = []
    if any(case.model == "resnet50" for case in cases):
        log_progress("saving ResNet-50")
        command = ["-m", "benchmarks.training.saved_states", str(rounds)]
        environment = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
        with running((command, BOTH_CORES, environment)) as (process,):
            process.wait_for(process.lines)
            measured = process.lines()[0].event
        for name in ("template", "orbax"):
            blocked, written = measured[name]["blocked"], measured[name]["written"]
            values = (
                name, measured["megabytes"], 1000 * statistics.median(blocked), 1000 * max(blocked),
                statistics.median(written),
            )  # fmt: skip
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return ResultTable(
        "Saving",
        COLUMNS,
        rows,
        "ResNet-50 with momentum on one CPU device, to a local directory; a few short steps before and after each "
        f"save. Blocked: from the call to its return. Rounds: {rounds}.",
    )
