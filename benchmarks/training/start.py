"""Seconds from the start of a process to its first progress line, for new and resumed trainings."""

import statistics
import tempfile
from pathlib import Path
from typing import Literal

from benchmarks.training.cases import Case
from benchmarks.training.processes import FIRST_CORE, SECOND_CORE, running
from benchmarks.training.results import ResultTable, log_progress, ratio
from benchmarks.training.trainers import job

Cache = Literal["none", "default", "everything"]
COLUMNS = ("model", "processes", "start", "compilation cache", "seconds", "relative to the imports")
CORES = (FIRST_CORE, SECOND_CORE)
IMPORTS = "import jax, flax, optax; print('{}')"


def measure(cases: list[Case], rounds: int, folder: Path) -> ResultTable:
    rows = []
    for case in cases:
        checkpoint = _checkpoint(case, folder)
        imports: list[float] = []
        seconds: dict[tuple[int, str, Cache], list[float]] = {
            (processes, start, cache): []
            for processes in (1, 2)
            for start in ("new", "resumed")
            for cache in ("none", "default", "everything")
        }
        for number in range(rounds + 1):
            log_progress(f"{case}, start {number} of {rounds}")
            imports.append(_imports())
            for (processes, start, cache), samples in seconds.items():
                job_dir = checkpoint if start == "resumed" else Path(tempfile.mkdtemp(dir=folder))
                samples.append(_first_line(case, processes, job_dir, cache, folder))
        for (processes, start, cache), samples in seconds.items():
            measured = samples[1:]  # round 0 fills the caches
            values = (
                case.model,
                processes,
                start,
                cache,
                statistics.median(measured),
                ratio(measured, imports[1:]),
            )
            rows.append(dict(zip(COLUMNS, values, strict=True)))
    return ResultTable(
        "Start to first step",
        COLUMNS,
        rows,
        "Until the first progress line, each process on a core of its own; `resumed` starts from a checkpoint. "
        "Compilation cache: none; JAX_COMPILATION_CACHE_DIR by default (compilations of 1 s and more); and everything "
        "(JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0). Relative to `import jax, flax, optax`, measured in the same "
        f"round. Rounds: {rounds}.",
    )


def _imports() -> float:
    with running((["-c", IMPORTS], FIRST_CORE, {})) as (process,):
        process.wait_for(process.lines)
        return process.lines()[0].at - process.started


def _first_line(case: Case, processes: int, job_dir: Path, cache: Cache, folder: Path) -> float:
    environment = {"JAX_COMPILATION_CACHE_DIR": str(folder / f"cache {cache}")}
    if cache == "none":
        environment = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    if cache == "everything":
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    with job(case, CORES[:processes], folder, environment, job_dir, log_every=1) as (chief, *_):
        return chief.wait_for_event("progress").at - chief.started


def _checkpoint(case: Case, folder: Path) -> Path:
    """A job directory with a checkpoint of the first steps, which the measured jobs do not change."""
    job_dir = Path(tempfile.mkdtemp(dir=folder))
    with job(case, [FIRST_CORE], folder, job_dir=job_dir, checkpoint_every=2) as (process,):
        process.wait_for_event("checkpoint")
    return job_dir
