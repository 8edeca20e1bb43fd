"""Rows of the trainer template: its step beside a plain loop's, and two processes beside twice one."""

import os
import shutil
import sys
import tempfile
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.rows import LeftOut, Row, Samples, interleaved

if TYPE_CHECKING:
    from benchmarks.training.cases import Case

_STEPS = {16: 1500, 64: 500, 256: 150}  # measured ones, by batch size: one to two seconds
_ROUNDS, _QUICK_ROUNDS = 4, 2
_TEMPLATE = Path(__file__).resolve().parents[2] / "trainer_template"


class _Scaling(NamedTuple):
    """Examples/s of each round: one process, two that train together, and the sum of two that train alone at once."""

    one: list[float]
    two: list[float]
    alone: list[float]


def _case(model: str, shape: tuple[int, ...] | None, classes: int, batch_size: int, steps: int) -> "Case":
    if (
        not hasattr(os, "sched_getaffinity")
        or len(os.sched_getaffinity(0)) < 2
        or not shutil.which("taskset")
    ):
        raise LeftOut("It needs Linux with taskset and two cores.")
    if str(_TEMPLATE) not in sys.path:  # it is not installed
        sys.path.insert(0, str(_TEMPLATE))
    from benchmarks.training.cases import Case

    return Case(model, shape, classes, batch_size, steps)


def _steps(batch_size: int, quick: bool) -> Samples:
    case = _case("cnn", None, 10, batch_size, _STEPS[batch_size])
    from benchmarks.training import against_handwritten

    with tempfile.TemporaryDirectory() as folder:
        return interleaved(
            lambda: against_handwritten.rate_of_template(case, 1, Path(folder)),
            lambda: against_handwritten.rate_by_hand(case, 1, Path(folder)),
            _QUICK_ROUNDS if quick else _ROUNDS,
            "examples/s",
            warm_up=0,
        )


@cache
def _scaling(quick: bool) -> _Scaling:
    case = _case("transformer", (64,), 256, 32, 8)
    from benchmarks.training import scaling

    measured = _Scaling([], [], [])
    turns = list(
        zip(measured, (scaling.rate_of_one, scaling.rate_of_two, scaling.rate_without_exchange), strict=True)
    )
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(1 if quick else _ROUNDS):
            for rates, run in turns:
                rates.append(run(case, Path(folder)))
            turns.reverse()
    return measured


def _against_linear(quick: bool) -> Samples:
    measured = _scaling(quick)
    return Samples(measured.two, [2 * rate for rate in measured.one], "examples/s")


def _against_ceiling(quick: bool) -> Samples:
    measured = _scaling(quick)
    return Samples(measured.two, measured.alone, "examples/s")


_TRANSFORMER = "the small transformer, batch 32, two processes on a core each"

ROWS = (
    *(
        Row(
            f"train-{batch_size}",
            f"the trainer template: the CNN on digits, batch {batch_size}, one core",
            "a plain loop with the same step",
            0.97,
            partial(_steps, batch_size),
            (
                "weights, metrics and the schedule, in the compiled step; Python takes 0.01 ms of it. "
                "Tried: sums stay on the device, one wait for several short steps, gradients scaled by "
                "multiplication"
            ),
            is_rate=True,
            in_quick=batch_size == 16,
        )
        for batch_size in _STEPS
    ),
    Row(
        "train-two",
        f"the trainer template: {_TRANSFORMER}",
        "twice one process",
        0.90,
        _against_linear,
        "memory and caches that both cores share (next row), and the exchange",
        is_rate=True,
    ),
    Row(
        "train-two-ceiling",
        f"the trainer template: {_TRANSFORMER}",
        "two that train at once and exchange nothing, which no exchange can surpass",
        0.97,
        _against_ceiling,
        "gloo: 3.5 MB a step between the processes",
        is_rate=True,
    ),
)
