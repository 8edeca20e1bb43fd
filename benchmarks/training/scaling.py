"""Scaling from one process to two on a core each, with and without communication."""

import statistics
from pathlib import Path

from benchmarks.training.cases import Case
from benchmarks.training.processes import FIRST_CORE, SECOND_CORE
from benchmarks.training.results import ResultTable, log_progress, ratio
from benchmarks.training.trainers import job, rate, wait_for_steps
from trainer.models.model import Model, built_in

COLUMNS = (
    "model", "examples", "batch", "MB exchanged a step", "one, examples/s", "two, examples/s",
    "no exchange / twice one", "two / twice one", "two / no exchange",
)  # fmt: skip


def measure(cases: list[Case], rounds: int, folder: Path) -> ResultTable:
    rows = []
    for case in cases:
        log_progress(f"{case}, one process and two")
        one: list[float] = []
        two: list[float] = []
        no_exchange: list[float] = []
        turns = [(one, rate_of_one), (two, rate_of_two), (no_exchange, rate_without_exchange)]
        for _ in range(rounds):
            for rates, run in turns:
                rates.append(run(case, folder))
            turns.reverse()
        values = (
            case.model, case.examples, case.batch_size, round(_bytes_exchanged(case) / 1e6, 2),
            statistics.median(one), statistics.median(two),
            ratio(no_exchange, one, by=2), ratio(two, one, by=2), ratio(two, no_exchange),
        )  # fmt: skip
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return ResultTable(
        "One process and two",
        COLUMNS,
        rows,
        "Each process on its own core; the batch is per process. No exchange: two independent processes at once, so "
        "that its distance to 1.00 is due to the machine (memory, caches, other load); the difference of `two` to it "
        f"is due to communication. Rounds: {rounds}. Target for compute-bound models: 0.90.",
    )


def rate_of_one(case: Case, folder: Path) -> float:
    with job(case, [FIRST_CORE], folder, _compiled(folder)) as (process,):
        wait_for_steps(process, case.steps)
        return rate(process, case, 1)


def rate_of_two(case: Case, folder: Path) -> float:
    with job(case, [FIRST_CORE, SECOND_CORE], folder, _compiled(folder)) as (chief, _):
        wait_for_steps(chief, case.steps)
        return rate(chief, case, 2)


def rate_without_exchange(case: Case, folder: Path) -> float:
    """The sum of both rates while both train."""
    with (
        job(case, [FIRST_CORE], folder, _compiled(folder)) as (first,),
        job(case, [SECOND_CORE], folder, _compiled(folder)) as (second,),
    ):
        both = (first, second)
        for process in both:
            process.wait_for_event("progress")
        since = max(process.lines("progress")[0].at for process in both)
        for process in both:  # as many steps each, concurrently
            done = process.lines("progress")[-1].event["step"]
            wait_for_steps(process, done + case.steps)
        until = min(process.lines("progress")[-1].at for process in both)
        return sum(rate(process, case, 1, since, until) for process in both)


def _bytes_exchanged(case: Case) -> int:
    """Size of the gradient; statistics and metrics are negligible."""
    dataset = case.dataset()
    return 4 * Model(built_in(case.model), dataset.input_shape, dataset.input_dtype, case.classes).params.size


def _compiled(folder: Path) -> dict[str, str]:
    return {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}
